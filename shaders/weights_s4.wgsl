// 4-bit blocks of 32 as in weights_q4.wgsl, one f16 scale a block. weight = scale * (q - 8) = scale * q + -8 * scale.
struct Raw { w: vec4u, s: u32 }

fn load_raw(at: u32) -> Raw {
    return Raw(wq[at], ws[at >> 1u]);
}

// (scale, minimum)
fn scale_of(raw: Raw, at: u32) -> vec2f {
    return unpack2x16float(raw.s)[at & 1u] * vec2f(1.0, -8.0);
}

fn expand(raw: Raw, at: u32) -> Block {
    let w = raw.w;
    let s = scale_of(raw, at);
    return Block(low(w.x), low(w.y), low(w.z), low(w.w), high(w.x), high(w.y), high(w.z), high(w.w), s.xyxy);
}
//#include "nibbles.wgsl"
