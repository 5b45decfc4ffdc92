// x[t, :] = table[id(t), :], dequantised; one invocation a block of 32 columns. A table cut by rows takes a dispatch
// for each piece, which minds only its own rows.
//#include "state.wgsl"

@group(0) @binding(0) var<storage, read> wq: array<vec4u>;
//#if SCALES
@group(0) @binding(1) var<storage, read> ws: array<u32>;
//#endif
@group(0) @binding(2) var<storage, read_write> y: array<vec4f>;
@group(0) @binding(3) var<uniform> state: State;
//#if IDS
@group(0) @binding(4) var<storage, read_write> ids: array<u32>;
//#endif

const NB = ${K // 32}u;

//#include "block.wgsl"

@compute @workgroup_size(${WG})
fn main(@builtin(global_invocation_id) global: vec3u) {
    if (state.stop != 0u) {
        return;
    }
    let b = global.x;
    let t = global.y;
    if (b >= NB || t >= state.count) {
        return;
    }
//#if IDS
    let id = ids[t] - ${ROW0}u;
//#else
    let id = state.token - ${ROW0}u;
//#endif
    if (id >= ${N}u) {
        return;
    }
    let w = load_block(id, b);
    let at = (t * NB + b) * 8u;
//#for i in 8
    y[at + ${i}u] = w.v${i} * UNIT * w.s.${"x" if i < 4 else "z"} + w.s.${"y" if i < 4 else "w"};
//#endfor
}
