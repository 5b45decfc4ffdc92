// Rows of 16-bit values, two a word; the format gives halves(words) -> four values.
const UNIT = vec4f(1.0);

struct Raw { p: vec4u, q: vec4u, r: vec4u, s: vec4u }

fn load_raw(at: u32) -> Raw {
    let i = at * 4u;
    return Raw(wq[i], wq[i + 1u], wq[i + 2u], wq[i + 3u]);
}

fn expand(raw: Raw, at: u32) -> Block {
    return Block(
        halves(raw.p.xy), halves(raw.p.zw), halves(raw.q.xy), halves(raw.q.zw),
        halves(raw.r.xy), halves(raw.r.zw), halves(raw.s.xy), halves(raw.s.zw),
        vec4f(1.0, 0.0, 1.0, 0.0));
}
