// What ends a step: the token is kept, the state moves on, and stops at an end token, at the limit, or where no logit was
// a number: then the token is NO_TOKEN, which is in no vocabulary.
const NO_TOKEN = 0xffffffffu;

// NaN and the infinities by their bits: of floats WGSL lets a compiler assume that they are neither.
fn is_finite(v: f32) -> bool {
    return (bitcast<u32>(v) & 0x7f800000u) != 0x7f800000u;
}

fn finish_step(token: u32) {
    let slot = state.step % state.ring;
    state.ids[slot / 4u][slot % 4u] = token;
    state.token = token;
    state.position += state.count;
    state.count = 1u;
    state.step += 1u;
    var stop = state.step >= state.limit || token == NO_TOKEN;
    for (var i = 0u; i < state.ends; i++) {
        stop = stop || state.end_ids[i / 4u][i % 4u] == token;
    }
    state.stop = select(0u, 1u, stop);
}
