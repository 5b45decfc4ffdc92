// y[C] = the mean of x[P, C] over its pixels, in vec4 over channels; one invocation four channels.

//#include "flat_index.wgsl"

@group(0) @binding(0) var<storage, read_write> x: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4f>;

const C4 = ${C // 4}u;

@compute @workgroup_size(${WG})
fn main(
    @builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) local: u32
) {
    let c = flat_group(group, groups) * ${WG}u + local;
    if (c >= C4) {
        return;
    }
    var sum = vec4f(0.0);
    for (var p = 0u; p < ${P}u; p++) {
        sum += x[p * C4 + c];
    }
    y[c] = sum * ${1.0 / P};
}
