// y[t, i] = silu(x[t, i]) * x[t, F + i]; silu(v) = v / (1 + exp(-v)).
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
    if (i >= ${F}u || t >= state.count) {
        return;
    }
    let gate = x[t * ${2 * F}u + i];
    y[t * ${F}u + i] = gate / (1.0 + exp(-gate)) * x[t * ${2 * F}u + ${F}u + i];
}
