// Turns q and k (RoPE, pairs of neighbouring columns) and writes k and v at their positions in the cache; with NORM each
// head of q and k is first divided by its root mean square and scaled (Qwen3). One invocation a head of a token.
//#include "state.wgsl"

@group(0) @binding(0) var<storage, read_write> qkv: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> state: State;
//#if HALF_CACHE
@group(0) @binding(3) var<storage, read_write> kv: array<u32>;
//#else
@group(0) @binding(3) var<storage, read_write> kv: array<f32>;
//#endif
@group(0) @binding(4) var<storage, read_write> rope: array<vec2f>;
//#if NORM
@group(0) @binding(5) var<storage, read> q_gain: array<f32>;
@group(0) @binding(6) var<storage, read> k_gain: array<f32>;
//#endif

const HEADS = ${HEADS}u;
const KV_HEADS = ${KV_HEADS}u;
const D = ${D}u;
//#if HALF_CACHE

//#include "half_cache.wgsl"
//#endif

@compute @workgroup_size(${WG})
fn main(@builtin(global_invocation_id) global: vec3u) {
    if (state.stop != 0u) {
        return;
    }
    let head = global.x;        // q heads, then k heads, then v heads
    let t = global.y;
    if (head >= HEADS + 2u * KV_HEADS || t >= state.count) {
        return;
    }
    let position = state.position + t;
    let qkv_at = (t * (HEADS + 2u * KV_HEADS) + head) * D;
    let kv_at = position * 2u * KV_HEADS * D + (head - HEADS) * D;
    if (head >= HEADS + KV_HEADS) {
//#if HALF_CACHE
        for (var i = 0u; i < D; i += 2u) {
            kv[(kv_at + i) / 2u] = to_halves(vec2f(qkv[qkv_at + i], qkv[qkv_at + i + 1u]));
        }
//#else
        for (var i = 0u; i < D; i++) {
            kv[kv_at + i] = qkv[qkv_at + i];
        }
//#endif
        return;
    }
    var factor = 1.0;
//#if NORM
    var squares = 0.0;
    for (var i = 0u; i < D; i++) {
        squares += qkv[qkv_at + i] * qkv[qkv_at + i];
    }
    factor = inverseSqrt(squares / ${D}.0 + ${EPS});
//#endif
    for (var i = 0u; i < D; i += 2u) {
        var pair = vec2f(qkv[qkv_at + i], qkv[qkv_at + i + 1u]) * factor;
//#if NORM
        if (head < HEADS) {
            pair *= vec2f(q_gain[i], q_gain[i + 1u]);
        } else {
            pair *= vec2f(k_gain[i], k_gain[i + 1u]);
        }
//#endif
        let turn = rope[position * (D / 2u) + i / 2u];
        let turned = vec2f(pair.x * turn.x - pair.y * turn.y, pair.x * turn.y + pair.y * turn.x);
        if (head < HEADS) {
            y[(t * HEADS + head) * D + i] = turned.x;
            y[(t * HEADS + head) * D + i + 1u] = turned.y;
        } else {
//#if HALF_CACHE
            kv[(kv_at + i) / 2u] = to_halves(turned);
//#else
            kv[kv_at + i] = turned.x;
            kv[kv_at + i + 1u] = turned.y;
//#endif
        }
    }
}
