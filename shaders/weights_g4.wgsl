// 4-bit blocks of 32 in ggml's order; an f32 scale and an f32 minimum a block. weight = scale * q + minimum.
struct Raw { w: vec4u, s: vec2u }

fn load_raw(at: u32) -> Raw {
    return Raw(wq[at], vec2u(ws[at * 2u], ws[at * 2u + 1u]));
}

fn expand(raw: Raw, at: u32) -> Block {
    let w = raw.w;
    let s = bitcast<vec2f>(raw.s);
    return Block(low(w.x), low(w.y), low(w.z), low(w.w), high(w.x), high(w.y), high(w.z), high(w.w), s.xyxy);
}
//#include "nibbles.wgsl"
