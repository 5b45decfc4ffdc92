// What ends a step: the token is kept, the state moves on, and stops at an end token, at the limit, or where no logit was
// a number: then the token is NO_TOKEN, which is in no vocabulary.
const NO_TOKEN = 0xffffffffu;

fn finish_step(token: u32) {
    // Everything is read before anything is written, so that the loads do not wait for each other.
    let step = state.step;
    let slot = step % state.ring;
    let position = state.position + state.count;
    var stop = step + 1u >= state.limit || token == NO_TOKEN;
    let ends = vec4u(state.ends);
//#for i in 3
    stop = stop | any((state.end_ids[${i}] == vec4u(token)) & (vec4u(${4 * i}u, ${4 * i + 1}u, ${4 * i + 2}u, ${4 * i + 3}u) < ends));
//#endfor
    state.ids[slot / 4u][slot % 4u] = token;
    state.token = token;
    state.position = position;
    state.count = 1u;
    state.step = step + 1u;
    state.stop = select(0u, 1u, stop);
}
