// Draws a token: temperature, then the top_k largest, then the smallest set of them that holds top_p of the mass
// (Holtzman et al. 2020), in this order; ties at either border stay in. Only finite logits are drawn. One workgroup.
//
// Passes over the logits: one finds the largest of each invocation, of which the k-th largest is no more than the k-th
// logit; one lists what reaches that, and both borders are found in the list. Where top_k is off the list has to hold
// top_p of the mass. Where it does not, or is too long, the borders are searched for among all logits, 16 passes for
// each, and one more draws. So two passes as a rule, two where neither border is asked for, and 35 at the most.
//#include "state.wgsl"

@group(0) @binding(1) var<storage, read_write> state: State;

// What the list has room for: two of its tokens for each invocation.
const ROOM = 2u * WG;
// Tokens are walked by id % WG, then by id: WALK places for each remainder, in runs of RUN neighbours.
const WALK = ${(V + WG - 1) // WG}u;
const RUN = ${((V + WG - 1) // WG + WG - 1) // WG}u;

var<workgroup> shared_params: vec4f;
var<workgroup> settled: u32;
// How many tokens are to be listed, which may be more than there is room for.
var<workgroup> found_count: atomic<u32>;
// The key that all listed reach, inverted, so that the least is found as a maximum that begins with 0.
var<workgroup> least_inverted: atomic<u32>;
// The key of each token of the list and its place in the walk; before there is a list, the largest key of each invocation,
// and without one a sum of each. It is little memory, as SwiftShader compiles a store for each word of it.
var<workgroup> found: array<vec2u, ${2 * WG}>;
// The mass of each token of the list, or of each part of the vocabulary.
var<workgroup> mass: array<f32, ${2 * WG}>;

//#include "logits.wgsl"
//#include "step_end.wgsl"

// The values of keys that are not 0.
fn values_of(keys: vec4u) -> vec4f {
    let bits = keys + vec4u(0x00800000u);
    return bitcast<vec4f>(select(-bitcast<vec4i>(bits), bitcast<vec4i>(bits & vec4u(0x7fffffffu)), bits >= vec4u(0x80000000u)));
}

// exp((v - top) / temperature), 0 below the border.
fn masses(keys: vec4u, border: u32, top: f32, factor: f32) -> vec4f {
    return select(vec4f(0.0), exp((values_of(keys) - top) * factor), keys >= vec4u(border));
}

// PCG (O'Neill 2014) over the seed and the step: the same draw wherever the step runs.
fn uniform_draw(seed: u32, step: u32) -> f32 {
    var h = (seed ^ (step * 0x9e3779b9u)) * 747796405u + 2891336453u;
    h = ((h >> ((h >> 28u) + 4u)) ^ h) * 277803737u;
    h = (h >> 22u) ^ h;
    h = h * 747796405u + 2891336453u + step;
    h = ((h >> ((h >> 28u) + 4u)) ^ h) * 277803737u;
    h = (h >> 22u) ^ h;
    return f32(h >> 8u) / 16777216.0;
}

fn place_in_walk(id: u32) -> u32 {
    return id % WG * WALK + id / WG;
}

fn token_at(place: u32) -> u32 {
    return place % WALK * WG + place / WALK;
}

fn sum_of_mass(count: u32) -> f32 {
    var total = 0.0;
    for (var i = 0u; i < count; i++) {
        total += mass[i];
    }
    return total;
}

struct Passed {
    index: u32,
    before: f32,
}

// The first of `count` entries of `mass` that brings their sum above the aim, and the sum before it. Rounding may keep
// the sum from ever passing it; then the last that has any.
fn passed(count: u32, aim: f32) -> Passed {
    var at = Passed(0u, 0.0);
    var sum = 0.0;
    for (var i = 0u; i < count; i++) {
        sum += mass[i];
        if (sum <= aim) {
            at = Passed(i + 1u, sum);
        }
    }
    if (at.index == count) {
        at.index = max(count, 1u) - 1u;
        while (at.index > 0u && mass[at.index] == 0.0) {
            at.index -= 1u;
        }
        at.before = aim;
    }
    return at;
}

//#include "sample_listed.wgsl"
//#include "sample_searched.wgsl"

@compute @workgroup_size(${WG})
fn main(@builtin(local_invocation_index) local: u32) {
    if (local == 0u) {
        // Not left to WebGPU's zeros: Mesa's lavapipe 22 does not write them.
        atomicStore(&found_count, 0u);
        atomicStore(&least_inverted, 0u);
        shared_params = vec4f(1.0 / state.temperature, state.top_p, f32(state.top_k), uniform_draw(state.seed, state.step));
    }
    let stopped = state.stop != 0u;
    var high = vec4u(0u);
    for (var round = 0u; round < ROUNDS; round++) {
        let read = read_keys(round, local);
//#for i in LOADS
        high = max(high, read[${i}]);
//#endfor
    }
    let best = largest(high);
    found[local].x = best;
    // This waits for all, so that these are there as well.
    let params = workgroupUniformLoad(&shared_params);
    var highest = 0u;
    var above = 0u;
    for (var i = 0u; i < WG; i++) {
        highest = max(highest, found[i].x);
        above += select(0u, 1u, found[i].x > best);
    }
    let top = values_of(vec4u(highest)).x;
    let by_count = params.z > 0.0 && params.z < f32(V);
    if (select(params.y < 1.0, params.z < f32(WG), by_count)) {
        // With all tokens to choose from, half of the largest ones are a guess that leaves the list short.
        let wanted = select(WG / 2u, u32(params.z), by_count);
        if (above < wanted) {
            atomicMax(&least_inverted, ~best);
        }
        if (draw_from_list(local, params, by_count, wanted, top, stopped)) {
            return;
        }
    }
    draw_from_all(local, params, by_count, highest, top, stopped);
}
