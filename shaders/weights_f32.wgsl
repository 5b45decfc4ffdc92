// Plain float32 rows.
const UNIT = vec4f(1.0);

fn load_block(row: u32, b: u32) -> Block {
    let at = (row * NB + b) * 8u;
    return Block(
        bitcast<vec4f>(wq[at]), bitcast<vec4f>(wq[at + 1u]), bitcast<vec4f>(wq[at + 2u]), bitcast<vec4f>(wq[at + 3u]),
        bitcast<vec4f>(wq[at + 4u]), bitcast<vec4f>(wq[at + 5u]), bitcast<vec4f>(wq[at + 6u]), bitcast<vec4f>(wq[at + 7u]),
        vec4f(1.0, 0.0, 1.0, 0.0));
}
