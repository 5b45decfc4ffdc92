// Attention of a chunk's tokens over the cached context in tiles of keys, with a running maximum and sum for each query
// (FlashAttention, Dao et al. 2022): no score leaves the workgroup.
//
// A workgroup takes QUERIES of the queries that share a head of the cache, in the order (token, head), through tiles of
// KEYS positions. In workgroup memory are SLICE vec4 of each key at a time, then as many whole values as take the same
// room; what comes next is on its way from memory while these are worked on. An invocation has ROWS queries: it scores
// four keys of a tile for them, and sums D / KEYS vec4 of their results.

//#include "attention_shared.wgsl"

const TILE_QUERIES = ${TILE * HEADS // KV_HEADS}u; // of a tile of tokens, for a head of the cache
const QUERIES = ${QUERIES}u;
const KEYS = ${KEYS}u;
const ROWS = ${ROWS}u;
const SLICE = ${SLICE}u;
const SLICES = ${D // 4 // SLICE}u;
const VALUES = ${KEYS * SLICE // (D // 4)}u; // values in workgroup memory at a time
const ACROSS = ${KEYS // 4}u;               // invocations along the keys, and along the columns
const QUERY_PITCH = D4 + 1u;                // odd like the other two, so that neighbours do not ask the same bank
const KEY_PITCH = SLICE + 1u;
const WEIGHT_PITCH = ACROSS + 1u;

var<workgroup> queries: array<vec4f, ${QUERIES * (D // 4 + 1)}>;
var<workgroup> tile: array<vec4f, ${KEYS * (SLICE + 1)}>;
var<workgroup> weights: array<vec4f, ${QUERIES * (KEYS // 4 + 1)}>; // [query, four keys]
var<workgroup> partial: array<vec${ROWS}f, ${WG}>;      // of each invocation, for its queries
//#if HALF_CACHE

//#include "half_cache.wgsl"
alias Cached = vec2u;

fn expanded(cached: Cached) -> vec4f {
    return from_halves(cached);
}
//#else
alias Cached = vec4f;

fn expanded(cached: Cached) -> vec4f {
    return cached;
}
//#endif

fn dot_onto(sum: f32, a: vec4f, b: vec4f) -> f32 {
    return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

// Where a query lies in q, and its result in y.
fn place_of(kv_head: u32, query: u32) -> u32 {
    return (query / SHARERS * ${HEADS}u + kv_head * SHARERS + query % SHARERS) * D4;
}

@compute @workgroup_size(${WG})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    // The last tokens first: they have the most keys to go through.
    let tiles = (state.count + ${TILE - 1}u) / ${TILE}u;
    if (state.stop != 0u || group.y >= tiles) {
        return;
    }
    let kv_head = group.x / (TILE_QUERIES / QUERIES);
    let first = (tiles - 1u - group.y) * TILE_QUERIES + group.x % (TILE_QUERIES / QUERIES) * QUERIES;
    let all = state.count * SHARERS;
    if (first >= all) {
        return;
    }
    let end = state.position + min(first + QUERIES - 1u, all - 1u) / SHARERS + 1u;
    for (var i = local; i < QUERIES * D4; i += ${WG}u) {
        let at = place_of(kv_head, min(first + i / D4, all - 1u));
        queries[i / D4 * QUERY_PITCH + i % D4] = q[at + i % D4] * ${SCALE};
    }
    let across = local % ACROSS;
    let mine = local / ACROSS * ROWS;
//#for r in ROWS
    let seen${r} = state.position + min(first + mine + ${r}u, all - 1u) / SHARERS + 1u;
//#for c in D // KEYS
    var v${r}_${c} = vec4f(0.0);
//#endfor
//#endfor
    var top = vec${ROWS}f(-3e38);
    var total = vec${ROWS}f(0.0);
    // The keys and values that an invocation fetches, and where it puts a key: four neighbours lie apart, as the
    // invocation that scores them reads them, so that all first ones, all second ones... are together.
    let keys_at = kv_head * D4 + local % SLICE;
    let values_at = KV4 + kv_head * D4 + local % D4;
//#for i in KEYS * SLICE // WG
    let key${i} = local / SLICE + ${i * WG // SLICE}u;
    let value${i} = local / D4 + ${i * WG // (D // 4)}u;
    let slot${i} = (key${i} % 4u * ACROSS + key${i} / 4u) * KEY_PITCH + local % SLICE;
    var next${i} = kv[min(key${i}, end - 1u) * 2u * KV4 + keys_at];
//#endfor
    for (var begin = 0u; begin < end; begin += KEYS) {
//#for r in ROWS
//#for k in 4
        var s${r}_${k} = 0.0;
//#endfor
//#endfor
        for (var slice = 0u; slice < SLICES; slice++) {
            workgroupBarrier();
//#for i in KEYS * SLICE // WG
            tile[slot${i}] = expanded(next${i});
//#endfor
            workgroupBarrier();
            let more = slice + 1u < SLICES;
            let column = select(values_at, keys_at + (slice + 1u) * SLICE, more);
//#for i in KEYS * SLICE // WG
            next${i} = kv[min(begin + select(value${i}, key${i}, more), end - 1u) * 2u * KV4 + column];
//#endfor
            for (var j = 0u; j < SLICE; j++) {
//#for r in ROWS
                let q${r} = queries[(mine + ${r}u) * QUERY_PITCH + slice * SLICE + j];
//#endfor
//#for k in 4
                let k${k} = tile[(${k}u * ACROSS + across) * KEY_PITCH + j];
//#for r in ROWS
                s${r}_${k} = dot_onto(s${r}_${k}, q${r}, k${k});
//#endfor
//#endfor
            }
        }
        let four = begin + across * 4u + vec4u(0u, 1u, 2u, 3u);
        var best = top;
//#for r in ROWS
        let scores${r} = select(vec4f(-3e38), vec4f(s${r}_0, s${r}_1, s${r}_2, s${r}_3), four < vec4u(seen${r}));
        best.${"xyzw"[r]} = max(max(scores${r}.x, scores${r}.y), max(scores${r}.z, scores${r}.w));
//#endfor
        partial[local] = best;
        workgroupBarrier();
        var most = top;
        for (var i = 0u; i < ACROSS; i++) {
            most = max(most, partial[local - across + i]);
        }
        let keep = exp(top - most);
        top = most;
        total *= keep;
//#for r in ROWS
        let weight${r} = exp(scores${r} - most.${"xyzw"[r]});
        weights[(mine + ${r}u) * WEIGHT_PITCH + across] = weight${r};
        total.${"xyzw"[r]} += dot(weight${r}, vec4f(1.0));
//#for c in D // KEYS
        v${r}_${c} *= keep.${"xyzw"[r]};
//#endfor
//#endfor
        for (var slice = 0u; slice < SLICES; slice++) {
            if (slice > 0u) {
                workgroupBarrier();
            }
//#for i in KEYS * SLICE // WG
            tile[local + ${i * WG}u] = expanded(next${i});
//#endfor
            workgroupBarrier();
            let more = slice + 1u < SLICES;
            let ahead = begin + select(KEYS, (slice + 1u) * VALUES, more);
            let column = select(keys_at, values_at, more);
//#for i in KEYS * SLICE // WG
            next${i} = kv[min(ahead + select(key${i}, value${i}, more), end - 1u) * 2u * KV4 + column];
//#endfor
            for (var j = 0u; j < VALUES / 4u; j++) {
//#for r in ROWS
                let w${r} = weights[(mine + ${r}u) * WEIGHT_PITCH + slice * (VALUES / 4u) + j];
//#endfor
//#for k in 4
//#for c in D // KEYS
                let t${k}_${c} = tile[(j * 4u + ${k}u) * D4 + ${c}u * ACROSS + across];
//#for r in ROWS
                v${r}_${c} += w${r}.${"xyzw"[k]} * t${k}_${c};
//#endfor
//#endfor
//#endfor
            }
        }
    }
    partial[local] = total;
    workgroupBarrier();
    var sum = vec${ROWS}f(0.0);
    for (var i = 0u; i < ACROSS; i++) {
        sum += partial[local - across + i];
    }
    let scale = 1.0 / sum;
//#for r in ROWS
    if (first + mine + ${r}u < all) {
        let at = place_of(kv_head, first + mine + ${r}u) + across;
//#for c in D // KEYS
        y[at + ${c}u * ACROSS] = v${r}_${c} * scale.${"xyzw"[r]};
//#endfor
    }
//#endfor
}
