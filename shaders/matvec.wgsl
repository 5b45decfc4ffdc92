// y[n] = sum over k of weight[n, k] * input[k] for one token, with what precedes and follows it fused in.
//
// The workgroup puts the inputs, normed or merged, into workgroup memory once for all its rows. LANES neighbouring
// invocations share ROWS rows: each takes every LANES-th block of 32 columns, and the partial sums meet by shuffles.
// A short kernel waits for memory rather than for arithmetic, so everything that does not hang on the inputs (weights,
// bias, what is added to) is asked for before them, and the step state's stop is looked at last.
// Prologue and epilogue are those of linear.wgsl.
enable subgroups;
diagnostic(off, subgroup_uniformity);

//#include "product.wgsl"

const PITCH = 9u;           // vec4 of workgroup memory a block: odd, so that neighbouring lanes do not ask the same bank

// A tile of the inputs times UNIT, a block of zeros behind it; the plain sums of each 16; squares by invocation.
var<workgroup> tile: array<vec4f, ${(TILE + 1) * 9}>;
var<workgroup> sums: array<f32, ${(TILE + 1) * 2}>;
//#if PROLOGUE == "rms_norm"
var<workgroup> squares: array<f32, ${WG}>;
//#endif

//#if PROLOGUE == "attention_merge"
//#include "attention_partials.wgsl"
//#endif

//#include "sum_lanes.wgsl"

// Four inputs of the token, without a norm's gain.
fn input_at(token: u32, i: u32) -> vec4f {
//#if PROLOGUE == "attention_merge"
    return merged_input(i);
//#else
    return x[token * NB * 8u + i];
//#endif
}

// Fills the tile with the blocks from ``first``, ``count`` of them. Returns the squares that this invocation has seen.
fn fill(token: u32, first: u32, count: u32, local: u32) -> f32 {
    var seen = 0.0;
    for (var i = local; i < count * 8u; i += ${WG}u) {
        let at = first * 8u + i;
        var v = input_at(token, at);
//#if PROLOGUE == "rms_norm"
        seen += dot(v, v);
        v *= gain[at];
//#endif
        tile[i / 8u * PITCH + i % 8u] = v * UNIT;
        var sum = dot(v, vec4f(1.0));
        sum += subgroupShuffleXor(sum, 1u);
        sum += subgroupShuffleXor(sum, 2u);
        if (i % 4u == 0u) {
            sums[i / 4u] = sum;
        }
    }
    return seen;
}

fn inputs(b: u32) -> Inputs {
    let at = b * PITCH;
    return Inputs(tile[at], tile[at + 1u], tile[at + 2u], tile[at + 3u], tile[at + 4u], tile[at + 5u], tile[at + 6u],
        tile[at + 7u], vec2f(sums[b * 2u], sums[b * 2u + 1u]));
}

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
//#if AHEAD
//#for i in TRIPS
    let b${i} = lane + ${i * LANES}u;
//#for r in ROWS
    let at${i}_${r} = row${r} * NB + min(b${i}, NB - 1u);
    let raw${i}_${r} = load_raw(at${i}_${r});
//#endfor
//#endfor
//#endif
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
    if (local < PITCH) {
        tile[${TILE}u * PITCH + local] = vec4f(0.0);
    }
    if (local < 2u) {
        sums[${TILE * 2}u + local] = 0.0;
    }
//#for r in ROWS
    var a${r}_0 = 0.0;
//#endfor

//#if AHEAD
    let seen = fill(token, 0u, NB, local);
//#if PROLOGUE == "rms_norm"
    squares[local] = seen;
//#endif
    workgroupBarrier();
//#for i in TRIPS
    {
        let in = inputs(min(b${i}, ${TILE}u));
//#for r in ROWS
        a${r}_0 += block_dot(expand(raw${i}_${r}, at${i}_${r}), in);
//#endfor
    }
//#endfor
//#else
    var seen = 0.0;
    for (var begin = 0u; begin < NB; begin += ${TILE}u) {
        let count = min(${TILE}u, NB - begin);
        workgroupBarrier();
        seen += fill(token, begin, count, local);
        workgroupBarrier();
        for (var b = lane; b < count; b += ${LANES}u) {
//#for r in ROWS
            let at${r} = row${r} * NB + begin + b;
            let raw${r} = load_raw(at${r});
//#endfor
            let in = inputs(b);
//#for r in ROWS
            a${r}_0 += block_dot(expand(raw${r}, at${r}), in);
//#endfor
        }
    }
//#if PROLOGUE == "rms_norm"
    squares[local] = seen;
    workgroupBarrier();
//#endif
//#endif

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
