// The number of an invocation in a dispatch of any size: rows of workgroups along y where x alone would be too many.
fn flat_group(group: vec3u, groups: vec3u) -> u32 {
    return group.y * groups.x + group.x;
}
