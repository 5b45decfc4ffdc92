// y[i] += x[i] over [T, H]: the residual stream takes a branch in.
//#include "state.wgsl"

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> state: State;

@compute @workgroup_size(${WG})
fn main(@builtin(global_invocation_id) global: vec3u) {
    if (state.stop != 0u) {
        return;
    }
    let i = global.x;
    let t = global.y;
    if (i >= ${H}u || t >= state.count) {
        return;
    }
    y[t * ${H}u + i] += x[t * ${H}u + i];
}
