// Plain float16 rows, two a word.
//#include "plain_halves.wgsl"

fn halves(w: vec2u) -> vec4f {
    return vec4f(unpack2x16float(w.x), unpack2x16float(w.y));
}
