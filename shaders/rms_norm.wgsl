// y[t, :] = x[t, :] / sqrt(mean(x[t, :]^2) + eps) * gain (Zhang and Sennrich 2019); LANES invocations a token.
//#if LANES > 1
enable subgroups;
diagnostic(off, subgroup_uniformity);
//#endif
//#include "state.wgsl"

@group(0) @binding(0) var<storage, read_write> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> gain: array<vec4f>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4f>;
@group(0) @binding(3) var<uniform> state: State;

@compute @workgroup_size(${WG})
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) local: u32) {
    if (state.stop != 0u) {
        return;
    }
    let lane = local % ${LANES}u;
    let t = min(group.x * ${WG // LANES}u + local / ${LANES}u, state.count - 1u);
    let at = t * ${H // 4}u;
    var squares = 0.0;
    for (var i = lane; i < ${H // 4}u; i += ${LANES}u) {
        let v = x[at + i];
        squares += dot(v, v);
    }
//#if LANES > 1
//#for i in LOG_LANES
    squares += subgroupShuffleXor(squares, ${LANES >> (i + 1)}u);
//#endfor
//#endif
    let factor = inverseSqrt(squares / ${H}.0 + ${EPS});
    for (var i = lane; i < ${H // 4}u; i += ${LANES}u) {
        y[at + i] = x[at + i] * factor * gain[i];
    }
}
