// The token with the largest finite logit; of equal ones the lowest id. One workgroup, one pass over the logits.
//#include "state.wgsl"

@group(0) @binding(1) var<storage, read_write> state: State;

// The largest key, and how far before the end of the vocabulary its lowest id is; 0 where there is none.
var<workgroup> highest: atomic<u32>;
var<workgroup> from_end: atomic<u32>;

//#include "logits.wgsl"
//#include "step_end.wgsl"

@compute @workgroup_size(${WG})
fn main(@builtin(local_invocation_index) local: u32) {
    let stopped = state.stop != 0u;
    // Not left to WebGPU's zeros: Mesa's lavapipe 22 does not write them.
    if (local == 0u) {
        atomicStore(&highest, 0u);
        atomicStore(&from_end, 0u);
    }
    var best = 0u;
    var best_round = 0u;
    for (var round = 0u; round < ROUNDS; round++) {
        let keys = read_keys(round, local);
        var high = keys[0];
//#for i in LOADS - 1
        high = max(high, keys[${i + 1}]);
//#endfor
        if (largest(high) > best) {
            best = largest(high);
            best_round = round;
        }
    }
    workgroupBarrier();
    atomicMax(&highest, best);
    workgroupBarrier();
    // Who has it looks in which of the round's places: rounds come in the order of ids, so the first is the lowest.
    if (best != 0u && best == atomicLoad(&highest)) {
        let keys = read_keys(best_round, local);
        var ids = vec4u(NO_TOKEN);
//#for i in LOADS
        ids = min(ids, select(vec4u(NO_TOKEN), ids_at(place_of(best_round, ${i}u, local)), keys[${i}] == vec4u(best)));
//#endfor
        atomicMax(&from_end, V - min(min(ids.x, ids.y), min(ids.z, ids.w)));
    }
    workgroupBarrier();
    if (local == 0u && !stopped) {
        let before = atomicLoad(&from_end);
        finish_step(select(V - before, NO_TOKEN, before == 0u));
    }
}
