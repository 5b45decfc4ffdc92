// Four signed bytes of a word, masked where they stand (see nibbles.wgsl). Flipping the sign bit of the lower three makes
// them b + 128, which is taken off again; the top byte's sign is the word's own.
const UNIT = vec4f(1.0, 0x1p-8, 0x1p-16, 0x1p-24);

fn bytes(w: u32) -> vec4f {
    let masked = vec4u(w ^ 0x00808080u) & vec4u(0xffu, 0xff00u, 0xff0000u, 0xff000000u);
    return vec4f(vec4i(masked)) - vec4f(128.0, 32768.0, 8388608.0, 0.0);
}
