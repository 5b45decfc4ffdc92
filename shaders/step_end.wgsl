// What ends a step: the token is kept, the state moves on, and stops at an end token or at the limit.
fn finish_step(token: u32) {
    let slot = state.step % state.ring;
    state.ids[slot / 4u][slot % 4u] = token;
    state.token = token;
    state.position += state.count;
    state.count = 1u;
    state.step += 1u;
    var stop = state.step >= state.limit;
    for (var i = 0u; i < state.ends; i++) {
        stop = stop || state.end_ids[i / 4u][i % 4u] == token;
    }
    state.stop = select(0u, 1u, stop);
}
