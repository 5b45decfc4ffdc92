// The step state: 256 bytes in a buffer of its own, so that a step never waits for the host. Only the sampler writes it;
// every other kernel binds it as a uniform, which keeps loops and exits that depend on it uniform.
struct State {
    token: u32,         // the token that the next step embeds
    position: u32,      // its position in the sequence (of the first token of a chunk)
    stop: u32,          // 1 once an end token was sampled, `limit` steps were taken or no logit was finite: queued steps then write nothing
    step: u32,          // tokens sampled so far
    count: u32,         // valid tokens of the current chunk (1 while decoding)
    limit: u32,
    ends: u32,          // how many of `end_ids` count
    seed: u32,
    temperature: f32,
    top_p: f32,
    top_k: u32,
    ring: u32,          // slots of `ids` in use, at most 32
    end_ids: array<vec4u, 3>,
    ids: array<vec4u, 8>,   // token of step s at slot s % ring
}
