// 4-bit blocks of 32 as in weights_q4.wgsl, one f16 scale a block. weight = scale * (q - 8) = scale * q + -8 * scale.
fn load_block(row: u32, b: u32) -> Block {
    let at = row * NB + b;
    let w = wq[at];
    let s = unpack2x16float(ws[at >> 1u])[at & 1u] * vec2f(1.0, -8.0);
    return Block(low(w.x), low(w.y), low(w.z), low(w.w), high(w.x), high(w.y), high(w.z), high(w.w), s.xyxy);
}
//#include "nibbles.wgsl"
