// A float16 KV cache, two values a word; arithmetic stays float32. What float16 cannot hold is kept at its largest value,
// since pack2x16float leaves open what becomes of it.
fn to_halves(pair: vec2f) -> u32 {
    return pack2x16float(clamp(pair, vec2f(-65504.0), vec2f(65504.0)));
}

fn from_halves(words: vec2u) -> vec4f {
    return vec4f(unpack2x16float(words.x), unpack2x16float(words.y));
}
