// Attention of one token over a part of the cached context, for all heads that share a head of the cache, with a running
// maximum (online softmax); attention_partials.wgsl puts the parts together.
//
// A workgroup takes a part in chunks of CHUNK positions. Its invocations are cut up twice: for the scores there are
// KPARTS of them a position, for the values GROUPS of D / 4, each with every GROUPS-th position. Keys and values of a
// chunk are asked for together, before anything is computed.

//#include "attention_shared.wgsl"

const CHUNK = ${CHUNK}u;
const KPARTS = ${WG // CHUNK}u;             // invocations a position, for the scores
const GROUPS = ${WG // (D // 4)}u;          // invocations a column, for the values
const KEYS = ${D // 4 // (WG // CHUNK)}u;   // vec4 of a key an invocation
const STEPS = ${CHUNK // (WG // (D // 4))}u; // positions of a chunk an invocation, for the values

var<workgroup> queries: array<vec4f, ${HEADS // KV_HEADS * D // 4}>;
var<workgroup> scores: array<f32, ${HEADS // KV_HEADS * WG}>;   // [sharer, part of a key, position]
var<workgroup> weights: array<f32, ${HEADS // KV_HEADS * CHUNK}>;
var<workgroup> halves: array<vec4f, ${WG}>;

//#include "attention_length.wgsl"
//#if HALF_CACHE

//#include "half_cache.wgsl"
//#endif

fn cached(at: u32) -> vec4f {
//#if HALF_CACHE
    return from_halves(kv[at]);
//#else
    return kv[at];
//#endif
}

@compute @workgroup_size(${WG})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    let kv_head = group.x / ${SPLITS}u;
    let part = group.x % ${SPLITS}u;
    let n = state.position + 1u;
    let length = split_length(n);
    let begin = part * length;
    let end = min(n, begin + length);
    if (begin >= end) {
        return;
    }
    for (var i = local; i < SHARERS * D4; i += ${WG}u) {
        queries[i] = q[kv_head * SHARERS * D4 + i] * ${SCALE};
    }
    let position = local % CHUNK;
    let key_part = local / CHUNK;
    let column = local % D4;
    let step = local / D4;
//#for g in HEADS // KV_HEADS
    var top${g} = -3e38;
    var total${g} = 0.0;
    var v${g} = vec4f(0.0);
//#endfor
    for (var chunk = begin; chunk < end; chunk += CHUNK) {
        let key_at = min(chunk + position, end - 1u) * 2u * KV4 + kv_head * D4 + key_part * KEYS;
//#for i in D // 4 // (WG // CHUNK)
        let key${i} = cached(key_at + ${i}u);
//#endfor
//#for i in CHUNK // (WG // (D // 4))
        let value${i} = cached((min(chunk + step + ${i}u * GROUPS, end - 1u) * 2u + 1u) * KV4 + kv_head * D4 + column);
//#endfor
        workgroupBarrier();
//#for g in HEADS // KV_HEADS
        {
            let at = ${g}u * D4 + key_part * KEYS;
            var score = 0.0;
//#for i in D // 4 // (WG // CHUNK)
            score += dot(queries[at + ${i}u], key${i});
//#endfor
            scores[${g}u * ${WG}u + local] = score;
        }
//#endfor
        workgroupBarrier();
//#for g in HEADS // KV_HEADS
        {
            var most = top${g};
            for (var p = 0u; p < CHUNK && chunk + p < end; p++) {
                most = max(most, score_of(${g}u, p));
            }
            let keep = exp(top${g} - most);
            top${g} = most;
            total${g} *= keep;
            v${g} *= keep;
            if (local < CHUNK) {
                weights[${g}u * CHUNK + local] = select(0.0, exp(score_of(${g}u, local) - most), chunk + local < end);
            }
        }
//#endfor
        workgroupBarrier();
//#for g in HEADS // KV_HEADS
        {
            var sum = 0.0;
            for (var p = 0u; p < CHUNK; p++) {
                sum += weights[${g}u * CHUNK + p];
            }
            total${g} += sum;
//#for i in CHUNK // (WG // (D // 4))
            v${g} += weights[${g}u * CHUNK + step + ${i}u * GROUPS] * value${i};
//#endfor
        }
//#endfor
    }
    if (state.stop != 0u) {
        return;
    }
//#for g in HEADS // KV_HEADS
    workgroupBarrier();
    halves[local] = v${g};
    workgroupBarrier();
    {
        let y_at = ((kv_head * SHARERS + ${g}u) * ${SPLITS}u + part) * (D4 + 1u);
        if (step == 0u) {
            var sum = v${g};
//#for i in WG // (D // 4) - 1
            sum += halves[column + ${i + 1}u * D4];
//#endfor
            y[y_at + column] = sum;
        }
        if (local == 0u) {
            y[y_at + D4] = vec4f(top${g}, total${g}, 0.0, 0.0);
        }
    }
//#endfor
}

fn score_of(g: u32, p: u32) -> f32 {
    var score = scores[g * ${WG}u + p];
//#for i in WG // CHUNK - 1
    score += scores[g * ${WG}u + ${i + 1}u * CHUNK + p];
//#endfor
    return score;
}
