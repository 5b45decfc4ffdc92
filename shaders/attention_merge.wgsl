// Puts the partial results of a split attention together: partials [heads, splits, D + 4] -> y [heads * D].
// One invocation a block of 32 columns.
//#include "state.wgsl"

@group(0) @binding(0) var<storage, read_write> x: array<vec4f>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4f>;
@group(0) @binding(2) var<uniform> state: State;

struct Inputs {
    x0: vec4f, x1: vec4f, x2: vec4f, x3: vec4f, x4: vec4f, x5: vec4f, x6: vec4f, x7: vec4f,
}

fn with_sums(x0: vec4f, x1: vec4f, x2: vec4f, x3: vec4f, x4: vec4f, x5: vec4f, x6: vec4f, x7: vec4f) -> Inputs {
    return Inputs(x0, x1, x2, x3, x4, x5, x6, x7);
}

//#include "attention_partials.wgsl"

@compute @workgroup_size(${WG})
fn main(@builtin(global_invocation_id) global: vec3u) {
    if (state.stop != 0u) {
        return;
    }
    let b = global.x;
    if (b >= ${HEADS * D // 32}u) {
        return;
    }
    let v = merged_inputs(b);
//#for i in 8
    y[b * 8u + ${i}u] = v.x${i};
//#endfor
}
