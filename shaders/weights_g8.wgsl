// Signed bytes; an f32 scale and an f32 minimum for each 16 weights. weight = scale * q + minimum.
struct Raw { v: vec4u, w: vec4u, s: vec4u }

fn load_raw(at: u32) -> Raw {
    return Raw(wq[at * 2u], wq[at * 2u + 1u], vec4u(ws[at * 4u], ws[at * 4u + 1u], ws[at * 4u + 2u], ws[at * 4u + 3u]));
}

fn expand(raw: Raw, at: u32) -> Block {
    let v = raw.v;
    let w = raw.w;
    let s = bitcast<vec4f>(raw.s);
    return Block(bytes(v.x), bytes(v.y), bytes(v.z), bytes(v.w), bytes(w.x), bytes(w.y), bytes(w.z), bytes(w.w), s);
}
//#include "signed_bytes.wgsl"
