// Rows of 16-bit values, two a word; the format gives halves(words) -> four values.
const UNIT = vec4f(1.0);

fn load_block(row: u32, b: u32) -> Block {
    let at = (row * NB + b) * 4u;
    let p = wq[at];
    let q = wq[at + 1u];
    let r = wq[at + 2u];
    let s = wq[at + 3u];
    return Block(halves(p.xy), halves(p.zw), halves(q.xy), halves(q.zw), halves(r.xy), halves(r.zw), halves(s.xy), halves(s.zw),
        vec4f(1.0, 0.0, 1.0, 0.0));
}
