// The sum over LANES neighbouring invocations, in each of them.
fn sum_lanes(value: f32) -> f32 {
    var v = value;
//#for i in LOG_LANES
    v += subgroupShuffleXor(v, ${LANES >> (i + 1)}u);
//#endfor
    return v;
}
