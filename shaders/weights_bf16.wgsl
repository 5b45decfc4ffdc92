// Plain bfloat16 rows, two a word: the upper half of a float32.
//#include "plain_halves.wgsl"

fn halves(w: vec2u) -> vec4f {
    return bitcast<vec4f>(vec4u(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u));
}
