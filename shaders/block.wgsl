// 32 weights of a row as unscaled values, with (scale, minimum) of the first and of the second 16.
// A weight format is a fragment that gives load_raw(at) -> Raw, what is in memory of block ``at`` of all rows' blocks, and
// expand(raw, at) -> Block, apart so that several loads may be on their way before the first is needed; and UNIT, by which
// each four values are to be multiplied: weight = scale * UNIT * v + minimum.
struct Block {
    v0: vec4f, v1: vec4f, v2: vec4f, v3: vec4f, v4: vec4f, v5: vec4f, v6: vec4f, v7: vec4f,
    s: vec4f,
}

// 32 inputs of a row times UNIT, with the plain sums of the first and of the second 16 (they multiply the minima).
struct Inputs {
    x0: vec4f, x1: vec4f, x2: vec4f, x3: vec4f, x4: vec4f, x5: vec4f, x6: vec4f, x7: vec4f,
    sums: vec2f,
}

fn with_sums(x0: vec4f, x1: vec4f, x2: vec4f, x3: vec4f, x4: vec4f, x5: vec4f, x6: vec4f, x7: vec4f) -> Inputs {
    let ones = vec4f(1.0);
    return Inputs(x0 * UNIT, x1 * UNIT, x2 * UNIT, x3 * UNIT, x4 * UNIT, x5 * UNIT, x6 * UNIT, x7 * UNIT, vec2f(dot(x0 + x1 + x2 + x3, ones), dot(x4 + x5 + x6 + x7, ones)));
}

fn block_dot(w: Block, x: Inputs) -> f32 {
    let first = dot(w.v0, x.x0) + dot(w.v1, x.x1) + dot(w.v2, x.x2) + dot(w.v3, x.x3);
    let second = dot(w.v4, x.x4) + dot(w.v5, x.x5) + dot(w.v6, x.x6) + dot(w.v7, x.x7);
    return w.s.x * first + w.s.z * second + w.s.y * x.sums.x + w.s.w * x.sums.y;
}

fn load_block(row: u32, b: u32) -> Block {
    let at = row * NB + b;
    return expand(load_raw(at), at);
}

//#include "weights_${FMT}.wgsl"
