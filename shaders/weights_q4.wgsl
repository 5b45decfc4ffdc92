// 4-bit blocks of 32 in ggml's order (byte j: low nibble = weight j, high nibble = weight j + 16);
// one f16 scale and one f16 minimum a block. weight = scale * q + minimum.
struct Raw { w: vec4u, s: u32 }

fn load_raw(at: u32) -> Raw {
    return Raw(wq[at], ws[at]);
}

// (scale, minimum)
fn scale_of(raw: Raw, at: u32) -> vec2f {
    return unpack2x16float(raw.s);
}

fn expand(raw: Raw, at: u32) -> Block {
    let w = raw.w;
    let s = scale_of(raw, at);
    return Block(low(w.x), low(w.y), low(w.z), low(w.w), high(w.x), high(w.y), high(w.z), high(w.w), s.xyxy);
}
//#include "nibbles.wgsl"
