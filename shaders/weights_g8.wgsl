// Signed bytes; an f32 scale and an f32 minimum for each 16 weights. weight = scale * q + minimum.
fn load_block(row: u32, b: u32) -> Block {
    let at = row * NB + b;
    let v = wq[at * 2u];
    let w = wq[at * 2u + 1u];
    let s = vec4u(ws[at * 4u], ws[at * 4u + 1u], ws[at * 4u + 2u], ws[at * 4u + 3u]);
    return Block(bytes(v.x), bytes(v.y), bytes(v.z), bytes(v.w), bytes(w.x), bytes(w.y), bytes(w.z), bytes(w.w), bitcast<vec4f>(s));
}
//#include "signed_bytes.wgsl"
