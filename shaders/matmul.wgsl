// y[t, n] = sum over k of weight[n, k] * input[t, k] for the tokens of a chunk, with what precedes and follows it fused in.
//
// A workgroup makes a tile of TILE_N rows by TILE_M tokens, ROWS by TOKENS of them an invocation, 32 columns at a time: the
// first TILE_N invocations put a block of weights each, dequantised, into workgroup memory, the others the inputs. The next
// columns are on their way from memory while these are multiplied.
// Prologue and epilogue are those of linear.wgsl.

//#include "product.wgsl"

const PITCH = 9u;           // vec4 of workgroup memory a row of 32 columns: odd, so that neighbours do not ask the same bank
const ACROSS = ${TILE_N // ROWS}u; // invocations along the rows

var<workgroup> weights: array<vec4f, ${TILE_N * 9}>;
var<workgroup> tokens: array<vec4f, ${TILE_M * 9}>;
//#if PROLOGUE == "rms_norm"
var<workgroup> squares: array<f32, ${TILE_M * 8}>;
//#endif

// Row ``r`` of the ROWS that belong to the invocation ``across``, of this workgroup.
fn row_of(group: u32, across: u32, r: u32) -> u32 {
//#if EPILOGUE == "silu_mul"
    let row = min(group * ${TILE_N // 2}u + across * ${ROWS // 2}u + r % ${ROWS // 2}u, ${N // 2 - 1}u);
    return row + select(0u, ${N // 2}u, r >= ${ROWS // 2}u);
//#else
    return min(group * ${TILE_N}u + across * ${ROWS}u + r, N - 1u);
//#endif
}

@compute @workgroup_size(${WG})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    if (state.stop != 0u || group.y * ${TILE_M}u >= state.count) {
        return;
    }
    let across = local % ACROSS;
    let down = local / ACROSS;
    // A row lies where ROWS neighbouring invocations do not ask the same bank for theirs: all first ones, all second ones...
    let is_weight = local < ${TILE_N}u;
    let row = row_of(group.x, local / ${ROWS}u, local % ${ROWS}u);
    let row_at = (local % ${ROWS}u * ACROSS + local / ${ROWS}u) * PITCH;
    let part = (local - ${TILE_N}u) % 8u;
    let first_token = (local - ${TILE_N}u) / 8u;
//#for i in TILE_M * 8 // (WG - TILE_N)
    let token${i} = first_token + ${i * (WG - TILE_N) // 8}u;
    let from${i} = min(group.y * ${TILE_M}u + token${i}, ${CHUNK - 1}u) * NB * 8u + part;
    var next${i} = vec4f(0.0);
    var square${i} = 0.0;
//#endfor
    var raw: Raw;
    if (is_weight) {
        raw = load_raw(row * NB);
    } else {
//#for i in TILE_M * 8 // (WG - TILE_N)
        next${i} = x[from${i}];
//#endfor
    }
//#for r in ROWS
//#for m in TOKENS
    var a${r}_${m} = 0.0;
//#endfor
//#endfor
    for (var b = 0u; b < NB; b++) {
        if (is_weight) {
            let w = expand(raw, row * NB + b);
//#for i in 8
            weights[row_at + ${i}u] = w.v${i} * UNIT * w.s.${"x" if i < 4 else "z"} + w.s.${"y" if i < 4 else "w"};
//#endfor
            raw = load_raw(row * NB + min(b + 1u, NB - 1u));
        } else {
//#if PROLOGUE == "rms_norm"
            let factor = gain[b * 8u + part];
//#endif
//#for i in TILE_M * 8 // (WG - TILE_N)
//#if PROLOGUE == "rms_norm"
            square${i} += dot(next${i}, next${i});
            next${i} *= factor;
//#endif
            tokens[token${i} * PITCH + part] = next${i};
            next${i} = x[from${i} + min(b + 1u, NB - 1u) * 8u];
//#endfor
        }
        workgroupBarrier();
        for (var i = 0u; i < 8u; i++) {
//#for m in TOKENS
            let x${m} = tokens[(down * ${TOKENS}u + ${m}u) * PITCH + i];
//#endfor
//#for r in ROWS
            let w${r} = weights[(${r}u * ACROSS + across) * PITCH + i];
//#for m in TOKENS
            a${r}_${m} += dot(w${r}, x${m});
//#endfor
//#endfor
        }
        workgroupBarrier();
    }
//#if PROLOGUE == "rms_norm"
    if (!is_weight) {
//#for i in TILE_M * 8 // (WG - TILE_N)
        squares[token${i} * 8u + part] = square${i};
//#endfor
    }
    workgroupBarrier();
//#for m in TOKENS
    {
        var sum = 0.0;
        for (var i = 0u; i < 8u; i++) {
            sum += squares[(down * ${TOKENS}u + ${m}u) * 8u + i];
        }
        let factor = inverseSqrt(sum / ${K}.0 + ${EPS});
//#for r in ROWS
        a${r}_${m} *= factor;
//#endfor
    }
//#endfor
//#endif
//#if BIAS
//#for r in ROWS
    {
        let added = bias[row_of(group.x, across, ${r}u)];
//#for m in TOKENS
        a${r}_${m} += added;
//#endfor
    }
//#endfor
//#endif
//#if EPILOGUE == "silu_mul"
    let first = group.x * ${TILE_N // 2}u + across * ${ROWS // 2}u;
//#else
    let first = group.x * ${TILE_N}u + across * ${ROWS}u;
//#endif
//#for m in TOKENS
    if (group.y * ${TILE_M}u + down * ${TOKENS}u + ${m}u < state.count) {
        let t = group.y * ${TILE_M}u + down * ${TOKENS}u + ${m}u;
//#if EPILOGUE == "rope_cache"
//#include "rope_turns.wgsl"
//#endif
//#include "epilogue_${EPILOGUE}.wgsl"
    }
//#endfor
}
