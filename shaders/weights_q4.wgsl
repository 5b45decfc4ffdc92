// 4-bit blocks of 32 in ggml's order (byte j: low nibble = weight j, high nibble = weight j + 16);
// one f16 scale and one f16 minimum a block. weight = scale * q + minimum.
fn load_block(row: u32, b: u32) -> Block {
    let w = wq[row * NB + b];
    let s = unpack2x16float(ws[row * NB + b]);
    return Block(low(w.x), low(w.y), low(w.z), low(w.w), high(w.x), high(w.y), high(w.z), high(w.w), s.xyxy);
}
//#include "nibbles.wgsl"
