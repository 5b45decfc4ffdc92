// Draws a token: temperature, then the top_k largest, then the smallest set of them that holds top_p of the mass
// (Holtzman et al. 2020), in this order; ties at either border stay in. Only finite logits are drawn. One workgroup.
// The borders are found by bisection over the logits' bits read as ordered integers, 32 rounds, without sorting.
//#include "state.wgsl"

@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> state: State;

const WG = ${WG}u;
const V = ${V}u;

var<workgroup> values: array<f32, ${WG}>;
var<workgroup> counts: array<u32, ${WG}>;
var<workgroup> shared_value: f32;
var<workgroup> shared_count: u32;
var<workgroup> shared_params: vec4f;

//#include "step_end.wgsl"

// 0, below every number, for what is none.
fn ordered(v: f32) -> u32 {
    let bits = bitcast<u32>(v);
    return select(0u, select(bits | 0x80000000u, ~bits, (bits & 0x80000000u) != 0u), is_finite(v));
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

fn sum_over_workgroup(local: u32, value: f32) -> f32 {
    values[local] = value;
    workgroupBarrier();
    if (local == 0u) {
        var total = 0.0;
        for (var i = 0u; i < WG; i++) {
            total += values[i];
        }
        shared_value = total;
    }
    return workgroupUniformLoad(&shared_value);
}

fn count_over_workgroup(local: u32, count: u32) -> u32 {
    counts[local] = count;
    workgroupBarrier();
    if (local == 0u) {
        var total = 0u;
        for (var i = 0u; i < WG; i++) {
            total += counts[i];
        }
        shared_count = total;
    }
    return workgroupUniformLoad(&shared_count);
}

fn mass(local: u32, top: f32, factor: f32, border: u32) -> f32 {
    var total = 0.0;
    for (var i = local; i < V; i += WG) {
        let v = logits[i];
        total += select(0.0, exp((v - top) * factor), ordered(v) >= border);
    }
    return total;
}

@compute @workgroup_size(${WG})
fn main(@builtin(local_invocation_index) local: u32) {
    if (local == 0u) {
        shared_params = vec4f(1.0 / state.temperature, state.top_p, f32(state.top_k), uniform_draw(state.seed, state.step));
    }
    let params = workgroupUniformLoad(&shared_params);
    // The largest as an ordered integer: it is 0 only where no logit is finite.
    var best = 0u;
    for (var i = local; i < V; i += WG) {
        best = max(best, ordered(logits[i]));
    }
    counts[local] = best;
    workgroupBarrier();
    if (local == 0u) {
        for (var i = 1u; i < WG; i++) {
            best = max(best, counts[i]);
        }
        shared_count = best;
    }
    let highest = workgroupUniformLoad(&shared_count);
    if (highest == 0u) {
        if (local == 0u && state.stop == 0u) {
            finish_step(NO_TOKEN);
        }
        return;
    }
    let top = bitcast<f32>(select(~highest, highest & 0x7fffffffu, (highest & 0x80000000u) != 0u));
    let factor = params.x;

    var border = 0u;
    if (params.z > 0.0 && params.z < f32(V)) {
        // The largest border that at least top_k logits reach.
        let wanted = u32(params.z);
        for (var bit = 0u; bit < 32u; bit++) {
            let candidate = border | (0x80000000u >> bit);
            var count = 0u;
            for (var i = local; i < V; i += WG) {
                count += select(0u, 1u, ordered(logits[i]) >= candidate);
            }
            if (count_over_workgroup(local, count) >= wanted) {
                border = candidate;
            }
        }
    }
    border = max(border, 1u);
    var total = sum_over_workgroup(local, mass(local, top, factor, border));
    if (params.y < 1.0) {
        // The largest border above which at least top_p of that mass lies.
        let wanted = params.y * total;
        var inner = 0u;
        for (var bit = 0u; bit < 32u; bit++) {
            let candidate = inner | (0x80000000u >> bit);
            if (sum_over_workgroup(local, mass(local, top, factor, max(candidate, border))) >= wanted) {
                inner = candidate;
            }
        }
        border = max(border, inner);
    }

    // Walk the kept mass in a fixed order (thread by thread) up to the drawn share of it.
    let mine = mass(local, top, factor, border);
    values[local] = mine;
    workgroupBarrier();
    if (local != 0u || state.stop != 0u) {
        return;
    }
    total = 0.0;
    for (var i = 0u; i < WG; i++) {
        total += values[i];
    }
    let aim = params.w * total;
    var before = 0.0;
    var thread = 0u;
    for (var i = 0u; i < WG; i++) {
        if (values[i] > 0.0) {
            thread = i;
            if (before + values[i] > aim) {
                break;
            }
            before += values[i];
        }
    }
    // Rounding may keep the sum from ever passing the aim; then the heaviest of this thread's tokens is taken.
    var token = 0u;
    var heaviest = 0.0;
    for (var i = thread; i < V; i += WG) {
        let v = logits[i];
        if (ordered(v) >= border) {
            let weight = exp((v - top) * factor);
            before += weight;
            if (before > aim) {
                token = i;
                break;
            }
            if (weight > heaviest) {
                heaviest = weight;
                token = i;
            }
        }
    }
    finish_step(token);
}
