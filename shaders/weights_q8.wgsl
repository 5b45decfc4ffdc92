// Signed bytes in blocks of 32, one f16 scale a block. weight = scale * q.
fn load_block(row: u32, b: u32) -> Block {
    let at = row * NB + b;
    let v = wq[at * 2u];
    let w = wq[at * 2u + 1u];
    let s = vec4f(unpack2x16float(ws[at >> 1u])[at & 1u], 0.0, 0.0, 0.0);
    return Block(bytes(v.x), bytes(v.y), bytes(v.z), bytes(v.w), bytes(w.x), bytes(w.y), bytes(w.z), bytes(w.w), s.xyxy);
}
//#include "signed_bytes.wgsl"
