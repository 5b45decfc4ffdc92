// The token with the largest logit; of equal ones the lowest id. One workgroup.
//#include "state.wgsl"

@group(0) @binding(0) var<storage, read_write> logits: array<f32>;
@group(0) @binding(1) var<storage, read_write> state: State;

var<workgroup> best_value: array<f32, ${WG}>;
var<workgroup> best_id: array<u32, ${WG}>;

//#include "step_end.wgsl"

@compute @workgroup_size(${WG})
fn main(@builtin(local_invocation_index) local: u32) {
    var value = -3.4e38;
    var id = 0u;
    for (var i = local; i < ${V}u; i += ${WG}u) {
        let v = logits[i];
        if (v > value) {
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
        if (best_value[i] > value || (best_value[i] == value && best_id[i] < id)) {
            value = best_value[i];
            id = best_id[i];
        }
    }
    finish_step(id);
}
