// Adds up a range of memory: how fast a device reads with nothing else to do. Neighbours read neighbouring vec4, LOADS of
// them an invocation, all on their way at once.
@group(0) @binding(0) var<storage, read> data: array<vec4u>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(${WG})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    let at = group.x * ${WG * LOADS}u + local;
//#for i in LOADS
    let v${i} = data[at + ${i * WG}u];
//#endfor
    var sum = vec4u(0u);
//#for i in LOADS
    sum += v${i};
//#endfor
    // Random numbers do not come to this, but no compiler knows.
    if (all(sum == vec4u(1u, 2u, 3u, 4u))) {
        out[0] = 1u;
    }
}
