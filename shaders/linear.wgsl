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

//#include "product.wgsl"

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
//#include "sum_lanes.wgsl"
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
//#include "product_rows.wgsl"
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
