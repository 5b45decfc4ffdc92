// The token with the largest finite logit; of equal ones the lowest id. One workgroup.
//#include "state.wgsl"

@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> state: State;

var<workgroup> best_value: array<f32, ${WG}>;
var<workgroup> best_id: array<u32, ${WG}>;

//#include "step_end.wgsl"

@compute @workgroup_size(${WG})
fn main(@builtin(local_invocation_index) local: u32) {
    var value = 0.0;
    var id = NO_TOKEN;
    for (var i = local; i < ${V}u; i += ${WG}u) {
        let v = logits[i];
        if (is_finite(v) && (id == NO_TOKEN || v > value)) {
            value = v;
            id = i;
        }
    }
    best_value[local] = value;
    best_id[local] = id;
    workgroupBarrier();
    if (local != 0u || state.stop != 0u) {
        return;
    }
    for (var i = 1u; i < ${WG}u; i++) {
        let other = best_id[i];
        if (other == NO_TOKEN) {
            continue;
        }
        if (id == NO_TOKEN || best_value[i] > value || (best_value[i] == value && other < id)) {
            value = best_value[i];
            id = other;
        }
    }
    finish_step(id);
}
