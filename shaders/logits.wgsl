// The logits as both samplers read them: four of a row each load, ${LOADS} loads on their way before the first is used,
// since a single workgroup has nothing else to hide a load's latency behind. Values are compared as integers.
@group(0) @binding(0) var<storage, read_write> logits: array<vec4u, ${(V + 3) // 4}>;

const WG = ${WG}u;
const V = ${V}u;
const LOADS = ${LOADS}u;
const FOURS = ${(V + 3) // 4}u;
const ROUNDS = ${(V + 4 * WG * LOADS - 1) // (4 * WG * LOADS)}u;

// Keys in the order of the values whose bits are given; one key for both zeros; 0, below all others, for what is no
// number. That goes by the bits, as WGSL lets a compiler assume of floats that they are neither NaN nor infinite.
fn keys_of(bits: vec4u) -> vec4u {
    let negative = bitcast<vec4u>(bitcast<vec4i>(bits) >> vec4u(31u));
    let keys = (bits ^ (negative | vec4u(0x80000000u))) - negative - vec4u(0x00800000u);
    return select(vec4u(0u), keys, keys < vec4u(0xff000000u));
}

fn largest(v: vec4u) -> u32 {
    return max(max(v.x, v.y), max(v.z, v.w));
}

// Where in `logits` an invocation's load of a round is.
fn place_of(round: u32, load: u32, local: u32) -> u32 {
    return (round * LOADS + load) * WG + local;
}

// The ids of the four logits at a place.
fn ids_at(place: u32) -> vec4u {
    return vec4u(4u * place) + vec4u(0u, 1u, 2u, 3u);
}

// The keys that an invocation has to look at in a round; 0 for what lies past the vocabulary.
fn read_keys(round: u32, local: u32) -> array<vec4u, ${LOADS}> {
//#for i in LOADS
    let place${i} = place_of(round, ${i}u, local);
//#endfor
//#for i in LOADS
    let bits${i} = logits[min(place${i}, FOURS - 1u)];
//#endfor
    var keys: array<vec4u, ${LOADS}>;
//#for i in LOADS
    keys[${i}] = keys_of(bits${i});
//#endfor
//#if V % (4 * WG * LOADS)
    if (round == ROUNDS - 1u) {
//#for i in LOADS
        keys[${i}] = select(vec4u(0u), keys[${i}], ids_at(place${i}) < vec4u(V));
//#endfor
    }
//#endif
    return keys;
}
