// y[n] = sum over k of weight[n, k] * input[k] for one token, with what precedes and follows it fused in.
//
// The workgroup puts the inputs, normed or merged, into workgroup memory once for all its rows: all of them, or a tile of
// TILE blocks of 32 columns at a time. LANES neighbouring invocations share ROWS rows: each takes every LANES-th block,
// and the partial sums meet by shuffles. The weights of STAGE blocks of each row are on their way at a time. INPUTS says
// what the tile holds: tile_floats.wgsl, tile_digits.wgsl.
// A short kernel waits for memory rather than for arithmetic, so everything that does not hang on the inputs (weights,
// bias, what is added to) is asked for before they are used, and the step state's stop is looked at last. The inputs are
// asked for behind the weights, or, with INPUTS_FIRST, before them: products.py says when. They are one round of loads then.
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
// FILL vec4 of the inputs, WG apart, on their way from memory.
struct Asked {
//#for j in FILL
    v${j}: vec4f,
//#if PROLOGUE == "rms_norm"
    gain${j}: vec4f,
//#endif
//#endfor
}

// Asks for the token's vec4 from ``at`` on. Their loads overlap.
fn ask(token: u32, at: u32) -> Asked {
    var asked: Asked;
//#for j in FILL
    let at${j} = min(at + ${j * WG}u, NB * 8u - 1u);
    asked.v${j} = x[token * NB * 8u + at${j}];
//#if PROLOGUE == "rms_norm"
    asked.gain${j} = gain[at${j}];
//#endif
//#endfor
    return asked;
}

// Puts what was asked for from ``at`` on into the tile from its vec4 ``i`` on, zeros behind the last input. Returns the
// sum of the squares.
fn put_asked(asked: Asked, at: u32, i: u32) -> f32 {
    var seen = 0.0;
//#for j in FILL
    {
        let valid = i + ${j * WG}u < ${TILE * 8}u && at + ${j * WG}u < NB * 8u;
        let v = select(vec4f(0.0), asked.v${j}, valid);
//#if PROLOGUE == "rms_norm"
        seen += dot(v, v);
        put(i + ${j * WG}u, v * asked.gain${j});
//#else
        put(i + ${j * WG}u, v);
//#endif
    }
//#endfor
    return seen;
}

// Fills the tile with the blocks from ``first`` on. Returns the squares that this invocation has seen.
fn fill(token: u32, first: u32, local: u32) -> f32 {
    var seen = 0.0;
    for (var round = 0u; round < ${-(-TILE * 8 // (WG * FILL))}u; round++) {
        let i = round * ${FILL * WG}u + local;
        seen += put_asked(ask(token, first * 8u + i), first * 8u + i, i);
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
//#if INPUTS_FIRST
    let asked = ask(token, local);
//#endif
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
//#if INPUTS_FIRST
        seen += put_asked(asked, local, local);
//#else
        seen += fill(token, base, local);
//#endif
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
