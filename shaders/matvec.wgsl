// y[n] = sum over k of weight[n, k] * input[k] for one token, with what precedes and follows it fused in.
//
// The workgroup puts the inputs, normed or merged, into workgroup memory once for all its rows: all of them, or a tile of
// TILE blocks of 32 columns at a time. LANES neighbouring invocations share ROWS rows: each takes every LANES-th block,
// and the partial sums meet by shuffles. The weights of STAGE blocks of each row are on their way at a time. INPUTS says
// what the tile holds: tile_floats.wgsl, tile_digits.wgsl.
// A short kernel waits for memory rather than for arithmetic, so everything that does not hang on the inputs (weights,
// bias, what is added to) is asked for before them, and the step state's stop is looked at last.
// Prologue and epilogue are those of linear.wgsl.
enable subgroups;
diagnostic(off, subgroup_uniformity);

//#include "product.wgsl"

const PITCH = 9u;           // vec4 of workgroup memory a block: odd, so that neighbouring lanes do not ask the same bank

//#if PROLOGUE == "rms_norm"
var<workgroup> squares: array<f32, ${WG}>;
//#endif

//#include "sum_lanes.wgsl"

//#include "tile_${INPUTS}.wgsl"

//#if PROLOGUE == "attention_merge"
//#include "merge_parts.wgsl"
//#else
// Fills the tile with the blocks from ``first`` on, zeros behind the last one: FILL vec4 at a time, so that their loads
// overlap. Returns the squares that this invocation has seen.
fn fill(token: u32, first: u32, local: u32) -> f32 {
    var seen = 0.0;
    for (var round = 0u; round < ${-(-TILE * 8 // (WG * FILL))}u; round++) {
//#for j in FILL
        let i${j} = (round * ${FILL}u + ${j}u) * ${WG}u + local;
        let at${j} = min(first * 8u + i${j}, NB * 8u - 1u);
        let v${j} = x[token * NB * 8u + at${j}];
//#if PROLOGUE == "rms_norm"
        let gain${j} = gain[at${j}];
//#endif
//#endfor
//#for j in FILL
        {
            let valid = i${j} < ${TILE * 8}u && first * 8u + i${j} < NB * 8u;
            let v = select(vec4f(0.0), v${j}, valid);
//#if PROLOGUE == "rms_norm"
            seen += dot(v, v);
            put(i${j}, v * gain${j});
//#else
            put(i${j}, v);
//#endif
        }
//#endfor
    }
    return seen;
}
//#endif

@compute @workgroup_size(${WG})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    let lane = local % ${LANES}u;
    let unit = group.x * ${WG // LANES}u + local / ${LANES}u;
    let t = 0u;
//#if X_ROW == "last"
    let token = state.count - 1u;
//#else
    let token = 0u;
//#endif
//#include "product_rows.wgsl"
//#for i in STAGE
    let start${i} = min(lane + ${i * LANES}u, NB - 1u);
//#for r in ROWS
    var raw${i}_${r} = load_raw(row${r} * NB + start${i});
//#endfor
//#endfor
//#if BIAS
//#for r in ROWS
    let bias${r} = bias[row${r}];
//#endfor
//#endif
//#if EPILOGUE == "residual"
//#for r in ROWS
    let old${r} = y[row${r}];
//#endfor
//#endif
//#if EPILOGUE == "rope_cache"
//#for m in 1
//#include "rope_turns.wgsl"
//#endfor
//#endif
    put_end(local);
//#for r in ROWS
    var a${r}_0 = 0.0;
//#endfor
    var seen = 0.0;
    for (var base = 0u; base < NB; base += ${TILE}u) {
//#if TILED
        workgroupBarrier();
//#endif
        seen += fill(token, base, local);
//#if PROLOGUE == "rms_norm"
        squares[local] = seen;
//#endif
        workgroupBarrier();
        for (var begin = 0u; begin < ${TILE}u; begin += ${LANES * STAGE}u) {
//#for i in STAGE
            {
                let b = begin + lane + ${i * LANES}u;
                let in = inputs(min(b, ${TILE}u));
                let at = min(base + b, NB - 1u);
//#for r in ROWS
                a${r}_0 += times(raw${i}_${r}, row${r} * NB + at, in);
//#endfor
//#if not AHEAD
                let next = min(base + b + ${LANES * STAGE}u, NB - 1u);
//#for r in ROWS
                raw${i}_${r} = load_raw(row${r} * NB + next);
//#endfor
//#endif
            }
//#endfor
        }
    }

//#if PROLOGUE == "rms_norm"
    var square = 0.0;
//#for i in WG // LANES
    square += squares[lane + ${i * LANES}u];
//#endfor
    let factor = inverseSqrt(sum_lanes(square) / ${K}.0 + ${EPS});
//#endif
//#for r in ROWS
    a${r}_0 = sum_lanes(a${r}_0);
//#if PROLOGUE == "rms_norm"
    a${r}_0 *= factor;
//#endif
//#if BIAS
    a${r}_0 += bias${r};
//#endif
//#endfor
    if (lane != 0u || state.stop != 0u) {
        return;
    }
//#if EPILOGUE == "residual"
//#for r in ROWS
    if (first + ${r}u < N) {
        y[first + ${r}u] = old${r} + a${r}_0;
    }
//#endfor
//#else
//#for m in 1
    {
//#include "epilogue_${EPILOGUE}.wgsl"
    }
//#endfor
//#endif
}
