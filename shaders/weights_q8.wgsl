// Signed bytes in blocks of 32, one f16 scale a block. weight = scale * q.
struct Raw { v: vec4u, w: vec4u, s: u32 }

fn load_raw(at: u32) -> Raw {
    return Raw(wq[at * 2u], wq[at * 2u + 1u], ws[at >> 1u]);
}

fn expand(raw: Raw, at: u32) -> Block {
    let v = raw.v;
    let w = raw.w;
    let s = vec4f(unpack2x16float(raw.s)[at & 1u], 0.0, 0.0, 0.0);
    return Block(bytes(v.x), bytes(v.y), bytes(v.z), bytes(v.w), bytes(w.x), bytes(w.y), bytes(w.z), bytes(w.w), s.xyxy);
}
//#include "signed_bytes.wgsl"
