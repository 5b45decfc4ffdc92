// Attention of one token over a part of the cached context, for all heads that share a head of the cache, with a running
// maximum (online softmax). A part leaves D unnormalised values of each head, then its largest score and the sum of
// exponentials: merge_parts.wgsl (a product) or attention_partials.wgsl (linear.wgsl, attention_merge.wgsl) puts them together.
//
// A workgroup takes a part in chunks of CHUNK positions. Its invocations are cut up twice: for the scores KPARTS
// neighbours share a position, each with every KPARTS-th vec4 of its key; for the values GROUPS of D / 4 take every
// GROUPS-th position each. The next keys and values are on their way from memory while these are worked on. Each sum and
// maximum is taken by shuffles over LANES neighbours first, and the rest by way of workgroup memory: without subgroups, all.
//#if LANES > 1
enable subgroups;
diagnostic(off, subgroup_uniformity);
//#endif

//#include "attention_shared.wgsl"

const CHUNK = ${CHUNK}u;
const KPARTS = ${WG // CHUNK}u;             // invocations a position, for the scores
const GROUPS = ${WG // (D // 4)}u;          // invocations a column, for the values
const BUNCHES = ${WG // LANES}u;            // of LANES neighbours

var<workgroup> queries: array<vec4f, ${HEADS // KV_HEADS * D // 4}>;
var<workgroup> bests: array<f32, ${HEADS // KV_HEADS * WG // LANES}>;   // [sharer, bunch]
//#if LANES < WG // CHUNK
var<workgroup> scores: array<f32, ${HEADS // KV_HEADS * WG}>;           // [sharer, position, part of a key]
//#endif
var<workgroup> weights: array<f32, ${HEADS // KV_HEADS * CHUNK}>;       // [sharer, position]
var<workgroup> group_sums: array<vec4f, ${WG * HEADS // KV_HEADS}>;         // [sharer, group, column]

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
    let position = local / KPARTS;
    let key_part = local % KPARTS;
    let column = local % D4;
    let step = local / D4;
    let bunch = local / ${LANES}u;
//#for g in HEADS // KV_HEADS
    var top${g} = -3e38;
    var total${g} = 0.0;
    var v${g} = vec4f(0.0);
//#endfor
    for (var i = local; i < SHARERS * D4; i += ${WG}u) {
        queries[i] = q[kv_head * SHARERS * D4 + i] * ${SCALE};
    }
    let keys_at = kv_head * D4 + key_part;
    let values_at = KV4 + kv_head * D4 + column;
//#for i in D // 4 // (WG // CHUNK)
    var key${i} = cached(min(begin + position, end - 1u) * 2u * KV4 + keys_at + ${i}u * KPARTS);
//#endfor
//#for i in CHUNK // (WG // (D // 4))
    var value${i} = cached(min(begin + step + ${i}u * GROUPS, end - 1u) * 2u * KV4 + values_at);
//#endfor
    for (var chunk = begin; chunk < end; chunk += CHUNK) {
        workgroupBarrier();
//#for g in HEADS // KV_HEADS
        var score${g} = 0.0;
//#endfor
//#for i in D // 4 // (WG // CHUNK)
//#for g in HEADS // KV_HEADS
        score${g} += dot(queries[${g}u * D4 + ${i}u * KPARTS + key_part], key${i});
//#endfor
//#endfor
        let next_key = min(chunk + CHUNK + position, end - 1u) * 2u * KV4 + keys_at;
//#for i in D // 4 // (WG // CHUNK)
        key${i} = cached(next_key + ${i}u * KPARTS);
//#endfor
//#if LANES < WG // CHUNK
//#for g in HEADS // KV_HEADS
        scores[${g * WG}u + local] = score${g};
//#endfor
        workgroupBarrier();
//#endif
//#for g in HEADS // KV_HEADS
        {
//#if LANES < WG // CHUNK
            score${g} = 0.0;
            for (var i = 0u; i < KPARTS; i++) {
                score${g} += scores[${g * WG}u + position * KPARTS + i];
            }
//#else
//#for i in LOG_KPARTS
            score${g} += subgroupShuffleXor(score${g}, ${2 ** i}u);
//#endfor
//#endif
            score${g} = select(-3e38, score${g}, chunk + position < end);
            var best = score${g};
//#for i in LOG_LANES - LOG_KPARTS
            best = max(best, subgroupShuffleXor(best, ${2 ** i * (WG // CHUNK)}u));
//#endfor
            if (local % ${LANES}u == 0u) {
                bests[${g}u * BUNCHES + bunch] = best;
            }
        }
//#endfor
        workgroupBarrier();
//#for g in HEADS // KV_HEADS
        {
            var most = top${g};
            for (var i = 0u; i < BUNCHES; i++) {
                most = max(most, bests[${g}u * BUNCHES + i]);
            }
            let keep = exp(top${g} - most);
            top${g} = most;
            let weight = select(0.0, exp(score${g} - most), chunk + position < end);
            total${g} = total${g} * keep + weight;
            v${g} *= keep;
            if (key_part == 0u) {
                weights[${g}u * CHUNK + position] = weight;
            }
        }
//#endfor
        workgroupBarrier();
//#for g in HEADS // KV_HEADS
//#for i in CHUNK // (WG // (D // 4))
        v${g} += weights[${g}u * CHUNK + step + ${i}u * GROUPS] * value${i};
//#endfor
//#endfor
//#for i in CHUNK // (WG // (D // 4))
        value${i} = cached(min(chunk + CHUNK + step + ${i}u * GROUPS, end - 1u) * 2u * KV4 + values_at);
//#endfor
    }
    if (state.stop != 0u) {
        return;
    }
//#for g in HEADS // KV_HEADS
    {
        var sum = total${g};
//#for i in LOG_LANES - LOG_KPARTS
        sum += subgroupShuffleXor(sum, ${2 ** i * (WG // CHUNK)}u);
//#endfor
//#if LANES < WG // CHUNK
        sum = select(0.0, sum, key_part == 0u);
//#endif
        group_sums[${g * WG}u + local] = v${g};
        if (local % ${LANES}u == 0u) {
            bests[${g}u * BUNCHES + bunch] = sum;
        }
    }
//#endfor
    workgroupBarrier();
    for (var i = local; i < SHARERS * D4; i += ${WG}u) {
        let sharer = i / D4;
        let y_at = ((kv_head * SHARERS + sharer) * ${SPLITS}u + part) * (D4 + 1u);
        var sum = group_sums[sharer * ${WG}u + i % D4];
//#for j in WG // (D // 4) - 1
        sum += group_sums[sharer * ${WG}u + i % D4 + ${j + 1}u * D4];
//#endfor
        y[y_at + i % D4] = sum;
        if (i % D4 == 0u) {
            var total = 0.0;
            for (var j = 0u; j < BUNCHES; j++) {
                total += bests[sharer * BUNCHES + j];
            }
            var top = top0;
//#for g in HEADS // KV_HEADS - 1
            top = select(top, top${g + 1}, sharer == ${g + 1}u);
//#endfor
            y[y_at + D4] = vec4f(top, total, 0.0, 0.0);
        }
    }
}
