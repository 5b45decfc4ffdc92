// Four weights of a word are masked where they stand, not shifted down: the float of byte j's value is 256^j times too
// large, and the inputs are multiplied by UNIT to make up for it, once for all rows. Powers of two, so nothing is lost.
const UNIT = vec4f(1.0, 0x1p-8, 0x1p-16, 0x1p-24);

fn low(w: u32) -> vec4f {
    return vec4f(vec4i(vec4u(w) & vec4u(0xfu, 0xf00u, 0xf0000u, 0xf000000u)));
}

fn high(w: u32) -> vec4f {
    return low(w >> 4u);
}
