// 4-bit blocks of 32 in ggml's order; an f32 scale and an f32 minimum a block. weight = scale * q + minimum.
fn load_block(row: u32, b: u32) -> Block {
    let w = wq[row * NB + b];
    let at = (row * NB + b) * 2u;
    let s = vec2f(bitcast<f32>(ws[at]), bitcast<f32>(ws[at + 1u]));
    return Block(low(w.x), low(w.y), low(w.z), low(w.w), high(w.x), high(w.y), high(w.z), high(w.w), s.xyxy);
}
//#include "nibbles.wgsl"
