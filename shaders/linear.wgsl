// y[t, n] = sum over k of weight[n, k] * input[t, k], with what precedes and follows it fused in.
//
// LANES neighbouring invocations share ROWS rows: each walks every LANES-th block of 32 columns, keeps its piece of the
// input in registers for all the rows, and the partial sums meet by shuffles, so no barrier is needed.
// TOKENS inputs are multiplied at once. Prologue: rms_norm (y = W(g * x) / rms(x): the factor is applied to the
// sums, which lets it be gathered in the same walk), attention_merge (the input is put together from the partial results
// of attention). Epilogue: bias, residual, silu_mul, rope_cache.
//#if LANES > 1
enable subgroups;
diagnostic(off, subgroup_uniformity);
//#endif

//#include "state.wgsl"

@group(0) @binding(0) var<storage, read> wq: array<vec4u>;
//#if SCALES
@group(0) @binding(1) var<storage, read> ws: array<u32>;
//#endif
@group(0) @binding(2) var<storage, read_write> x: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<uniform> state: State;
//#if PROLOGUE == "rms_norm"
@group(0) @binding(5) var<storage, read> gain: array<vec4f>;
//#endif
//#if BIAS
@group(0) @binding(6) var<storage, read> bias: array<f32>;
//#endif
//#if EPILOGUE == "rope_cache"
//#if HALF_CACHE
@group(0) @binding(7) var<storage, read_write> kv: array<u32>;
//#else
@group(0) @binding(7) var<storage, read_write> kv: array<f32>;
//#endif
@group(0) @binding(8) var<storage, read_write> rope: array<vec2f>;
//#endif

const N = ${N}u;        // rows of weight in this dispatch
const NB = ${K // 32}u; // blocks of 32 columns
const STRIDE = ${STRIDE}u;  // floats from one token's y to the next's

//#include "block.wgsl"
//#if HALF_CACHE

//#include "half_cache.wgsl"
//#endif

//#if PROLOGUE == "attention_merge"
//#include "attention_partials.wgsl"
//#endif

//#if PROLOGUE == "rms_norm"
// Sets the inputs times the norm's gain, and adds their squares.
fn load_inputs(token: u32, b: u32, squares: ptr<function, f32>) -> Inputs {
    let at = (token * NB + b) * 8u;
//#for i in 8
    let x${i} = x[at + ${i}u];
//#endfor
    *squares += dot(x0, x0) + dot(x1, x1) + dot(x2, x2) + dot(x3, x3) + dot(x4, x4) + dot(x5, x5) + dot(x6, x6) + dot(x7, x7);
    let g = b * 8u;
    return with_sums(x0 * gain[g], x1 * gain[g + 1u], x2 * gain[g + 2u], x3 * gain[g + 3u],
        x4 * gain[g + 4u], x5 * gain[g + 5u], x6 * gain[g + 6u], x7 * gain[g + 7u]);
}
//#else
fn load_inputs(token: u32, b: u32) -> Inputs {
//#if PROLOGUE == "attention_merge"
    return merged_inputs(b);
//#else
    let at = (token * NB + b) * 8u;
    return with_sums(x[at], x[at + 1u], x[at + 2u], x[at + 3u], x[at + 4u], x[at + 5u], x[at + 6u], x[at + 7u]);
//#endif
}
//#endif

//#if LANES > 1
fn sum_lanes(value: f32) -> f32 {
    var v = value;
//#for i in LOG_LANES
    v += subgroupShuffleXor(v, ${LANES >> (i + 1)}u);
//#endfor
    return v;
}
//#endif

@compute @workgroup_size(${WG})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    if (state.stop != 0u) {
        return;
    }
    let lane = local % ${LANES}u;
    let unit = group.x * ${WG // LANES}u + local / ${LANES}u;
//#if X_ROW == "last"
    let token = state.count - 1u;
//#else
    let token = group.y * ${TOKENS}u;
//#endif
//#if EPILOGUE == "silu_mul"
    let first = unit * ${ROWS // 2}u;
//#for r in ROWS
    let row${r} = min(first + ${r % (ROWS // 2)}u, ${N // 2 - 1}u) + ${0 if r < ROWS // 2 else N // 2}u;
//#endfor
//#else
    let first = unit * ${ROWS}u;
//#for r in ROWS
    let row${r} = min(first + ${r}u, N - 1u);
//#endfor
//#endif
//#for r in ROWS
//#for m in TOKENS
    var a${r}_${m} = 0.0;
//#endfor
//#endfor
//#if PROLOGUE == "rms_norm"
//#for m in TOKENS
    var q${m} = 0.0;
//#endfor
//#endif

    for (var b = lane; b < NB; b += ${LANES}u) {
//#for m in TOKENS
//#if PROLOGUE == "rms_norm"
        let in${m} = load_inputs(token + ${m}u, b, &q${m});
//#else
        let in${m} = load_inputs(token + ${m}u, b);
//#endif
//#endfor
//#for r in ROWS
        {
            let w = load_block(row${r}, b);
//#for m in TOKENS
            a${r}_${m} += block_dot(w, in${m});
//#endfor
        }
//#endfor
    }

//#if PROLOGUE == "rms_norm"
//#for m in TOKENS
//#if LANES > 1
    q${m} = sum_lanes(q${m});
//#endif
    let factor${m} = inverseSqrt(q${m} / ${K}.0 + ${EPS});
//#endfor
//#endif
//#for r in ROWS
//#for m in TOKENS
//#if LANES > 1
    a${r}_${m} = sum_lanes(a${r}_${m});
//#endif
//#if PROLOGUE == "rms_norm"
    a${r}_${m} *= factor${m};
//#endif
//#endfor
//#if BIAS
    {
        let added = bias[row${r}];
//#for m in TOKENS
        a${r}_${m} += added;
//#endfor
    }
//#endif
//#endfor
    if (lane != 0u) {
        return;
    }
//#for m in TOKENS
//#if TOKENS > 1
    if (group.y * ${TOKENS}u + ${m}u < state.count) {
//#else
    {
//#endif
        let t = group.y * ${TOKENS}u + ${m}u;
//#if EPILOGUE == "rope_cache"
//#include "rope_turns.wgsl"
//#endif
//#include "epilogue_${EPILOGUE}.wgsl"
    }
//#endfor
}
