// Plain float32 rows.
const UNIT = vec4f(1.0);

struct Raw { a: vec4u, b: vec4u, c: vec4u, d: vec4u, e: vec4u, f: vec4u, g: vec4u, h: vec4u }

fn load_raw(at: u32) -> Raw {
    let i = at * 8u;
    return Raw(wq[i], wq[i + 1u], wq[i + 2u], wq[i + 3u], wq[i + 4u], wq[i + 5u], wq[i + 6u], wq[i + 7u]);
}

fn expand(raw: Raw, at: u32) -> Block {
    return Block(
        bitcast<vec4f>(raw.a), bitcast<vec4f>(raw.b), bitcast<vec4f>(raw.c), bitcast<vec4f>(raw.d),
        bitcast<vec4f>(raw.e), bitcast<vec4f>(raw.f), bitcast<vec4f>(raw.g), bitcast<vec4f>(raw.h),
        vec4f(1.0, 0.0, 1.0, 0.0));
}
