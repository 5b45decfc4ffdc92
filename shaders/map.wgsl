// Elementwise over N vec4: y = activation(a), or with SUM a + b; for where no producer took the operation in.

//#include "activation.wgsl"
//#include "flat_index.wgsl"

@group(0) @binding(0) var<storage, read_write> a: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4f>;
//#if SUM
@group(0) @binding(2) var<storage, read_write> b: array<vec4f>;
//#endif

@compute @workgroup_size(${WG})
fn main(
    @builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) local: u32
) {
    let i = flat_group(group, groups) * ${WG}u + local;
    if (i >= ${N}u) {
        return;
    }
//#if SUM
    y[i] = activate(a[i] + b[i]);
//#else
    y[i] = activate(a[i]);
//#endif
}
