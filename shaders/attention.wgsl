// Attention of one token's head over a part of the cached context, with a running maximum (online softmax).
// LANES neighbouring invocations share a (head, part): each walks every LANES-th position with its own running sums,
// which meet by shuffles at the end. With SPLITS = 1 the result is final, else a partial one (attention_partials.wgsl).
//#if LANES > 1
enable subgroups;
diagnostic(off, subgroup_uniformity);
//#endif

//#include "state.wgsl"

@group(0) @binding(0) var<storage, read_write> q: array<vec4f>;
//#if HALF_CACHE
@group(0) @binding(1) var<storage, read_write> kv: array<vec4u>;
//#else
@group(0) @binding(1) var<storage, read_write> kv: array<vec4f>;
//#endif
@group(0) @binding(2) var<storage, read_write> y: array<vec4f>;
@group(0) @binding(3) var<uniform> state: State;

const D4 = ${D // 4}u;
//#if SPLITS > 1

//#include "attention_length.wgsl"
//#endif
//#if HALF_CACHE
const D8 = ${D // 8}u;
const KV8 = ${KV_HEADS * D // 8}u;

//#include "half_cache.wgsl"
//#else
const KV4 = ${KV_HEADS * D // 4}u;
//#endif

@compute @workgroup_size(${WG})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    if (state.stop != 0u) {
        return;
    }
    let lane = local % ${LANES}u;
    let unit = group.x * ${WG // LANES}u + local / ${LANES}u;
    let head = min(unit / ${SPLITS}u, ${HEADS - 1}u);
    let part = unit % ${SPLITS}u;
    let token = group.y;
    if (token >= state.count) {
        return;
    }
    let n = state.position + token + 1u;
//#if SPLITS > 1
    let length = split_length(n);
    let begin = part * length;
    let end = min(n, begin + length);
//#else
    let begin = 0u;
    let end = n;
//#endif
    let q_at = (token * ${HEADS}u + head) * D4;
    let kv_head = head / ${HEADS // KV_HEADS}u;
//#for i in D // 4
    let q${i} = q[q_at + ${i}u] * ${SCALE};
    var v${i} = vec4f(0.0);
//#endfor
    var top = -3e38;
    var total = 0.0;
    for (var p = begin + lane; p < end; p += ${LANES}u) {
//#if HALF_CACHE
        let at = p * 2u * KV8 + kv_head * D8;
        var score = 0.0;
//#for i in D // 8
        let k${i} = kv[at + ${i}u];
        score += dot(q${2 * i}, from_halves(k${i}.xy)) + dot(q${2 * i + 1}, from_halves(k${i}.zw));
//#endfor
//#else
        let at = p * ${2}u * KV4 + kv_head * D4;
        var score = 0.0;
//#for i in D // 4
        score += dot(q${i}, kv[at + ${i}u]);
//#endfor
//#endif
        let next = max(top, score);
        let keep = exp(top - next);
        let weight = exp(score - next);
        top = next;
        total = total * keep + weight;
//#if HALF_CACHE
//#for i in D // 8
        let value${i} = kv[at + KV8 + ${i}u];
        v${2 * i} = v${2 * i} * keep + weight * from_halves(value${i}.xy);
        v${2 * i + 1} = v${2 * i + 1} * keep + weight * from_halves(value${i}.zw);
//#endfor
//#else
//#for i in D // 4
        v${i} = v${i} * keep + weight * kv[at + KV4 + ${i}u];
//#endfor
//#endif
    }

//#if LANES > 1
//#for step in LOG_LANES
    {
        let other_top = subgroupShuffleXor(top, ${LANES >> (step + 1)}u);
        let other_total = subgroupShuffleXor(total, ${LANES >> (step + 1)}u);
        let next = max(top, other_top);
        let mine = exp(top - next);
        let theirs = exp(other_top - next);
        top = next;
        total = total * mine + other_total * theirs;
//#for i in D // 4
        v${i} = v${i} * mine + subgroupShuffleXor(v${i}, ${LANES >> (step + 1)}u) * theirs;
//#endfor
    }
//#endfor
//#endif
    if (lane != 0u || unit >= ${HEADS * SPLITS}u || begin >= end) {
        return;
    }
//#if SPLITS > 1
    let y_at = (head * ${SPLITS}u + part) * (D4 + 1u);
    y[y_at + D4] = vec4f(top, total, 0.0, 0.0);
//#for i in D // 4
    y[y_at + ${i}u] = v${i};
//#endfor
//#else
    let y_at = (token * ${HEADS}u + head) * D4;
    let scale = 1.0 / total;
//#for i in D // 4
    y[y_at + ${i}u] = v${i} * scale;
//#endfor
//#endif
}
