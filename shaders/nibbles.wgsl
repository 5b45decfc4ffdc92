fn low(w: u32) -> vec4f {
    return vec4f(unpack4xU8(w & 0x0f0f0f0fu));
}

fn high(w: u32) -> vec4f {
    return vec4f(unpack4xU8((w >> 4u) & 0x0f0f0f0fu));
}
