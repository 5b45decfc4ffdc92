// The tile of inputs of matvec.wgsl in whole numbers, for weights of 4 bits in ggml's order on a device that multiplies four
// bytes at a time: each 16 inputs are 24-bit numbers times a scale of their own, in three digits to the base 256 of which
// the highest has the sign. Digits times weights add up exactly, 15 * 16 * 2^23 at most, so what is lost is what rounding
// an input to 24 bits loses, about as much as float32 does. What is no number stays none: it is in the plain sum.
// A block is 8 vec4: of each 16 inputs the high, middle and low digits, and (scale, plain sum) as bits.
const TOP = 8388096.0; // the largest of 16 becomes that: less than 2^23 by more than rounding may add

struct Digits { high: vec4u, middle: vec4u, low: vec4u, scale_sum: vec2f }
struct DigitInputs { first: Digits, second: Digits }

var<workgroup> tile: array<vec4u, ${(TILE + 1) * 9}>;

// Puts four inputs into the tile at vec4 ``i`` of it; neighbours call it together. Four of them have 16 inputs, four
// words each, and exchange these, so that each writes one of the vec4.
fn put(i: u32, v: vec4f) {
    let size = abs(v);
    var largest = max(max(size.x, size.y), max(size.z, size.w));
    var sum = dot(v, vec4f(1.0));
    largest = max(largest, subgroupShuffleXor(largest, 1u));
    sum += subgroupShuffleXor(sum, 1u);
    largest = max(largest, subgroupShuffleXor(largest, 2u));
    sum += subgroupShuffleXor(sum, 2u);
    largest = max(largest, 1e-30);
    let number = vec4i(round(v * (TOP / largest)));
    let high = pack4xI8(number >> vec4u(16u));
    let middle = pack4xU8(bitcast<vec4u>(number >> vec4u(8u)) & vec4u(0xffu));
    let low = pack4xU8(bitcast<vec4u>(number) & vec4u(0xffu));
    let scale_or_sum = bitcast<u32>(select(sum, largest * (1.0 / TOP), i % 4u == 0u));

    // A matrix of four by four words, one column each, is turned over: within pairs, then between them.
    let odd = (i & 1u) == 1u;
    let other_high = subgroupShuffleXor(select(middle, high, odd), 1u);
    let other_low = subgroupShuffleXor(select(scale_or_sum, low, odd), 1u);
    let a = select(vec2u(high, other_high), vec2u(other_high, middle), odd);
    let b = select(vec2u(low, other_low), vec2u(other_low, scale_or_sum), odd);
    let upper = (i & 2u) == 2u;
    let given = select(b, a, upper);
    let got = vec2u(subgroupShuffleXor(given.x, 2u), subgroupShuffleXor(given.y, 2u));
    if (i < ${TILE * 8}u) {
        tile[i / 8u * PITCH + i % 8u] = select(vec4u(a, got), vec4u(got, b), upper);
    }
}

// Puts the zeros behind the last block.
fn put_end(local: u32) {
    if (local < PITCH) {
        tile[${TILE}u * PITCH + local] = vec4u(0u);
    }
}

fn digits(at: u32) -> Digits {
    return Digits(tile[at], tile[at + 1u], tile[at + 2u], bitcast<vec2f>(tile[at + 3u].xy));
}

fn inputs(b: u32) -> DigitInputs {
    return DigitInputs(digits(b * PITCH), digits(b * PITCH + 4u));
}

// 16 weights, a byte each, times as many inputs.
fn sixteen(w: vec4u, in: Digits) -> f32 {
    let high = dot4I8Packed(w.x, in.high.x) + dot4I8Packed(w.y, in.high.y) + dot4I8Packed(w.z, in.high.z) + dot4I8Packed(w.w, in.high.w);
    let middle = dot4U8Packed(w.x, in.middle.x) + dot4U8Packed(w.y, in.middle.y) + dot4U8Packed(w.z, in.middle.z) + dot4U8Packed(w.w, in.middle.w);
    let low = dot4U8Packed(w.x, in.low.x) + dot4U8Packed(w.y, in.low.y) + dot4U8Packed(w.z, in.low.z) + dot4U8Packed(w.w, in.low.w);
    return f32((high << 16u) + i32((middle << 8u) + low)) * in.scale_sum.x;
}

// Block ``at`` of all rows' blocks times these inputs.
fn times(raw: Raw, at: u32, in: DigitInputs) -> f32 {
    let nibbles = vec4u(0x0f0f0f0fu);
    let s = scale_of(raw, at);
    let product = sixteen(raw.w & nibbles, in.first) + sixteen((raw.w >> vec4u(4u)) & nibbles, in.second);
    return s.x * product + s.y * (in.first.scale_sum.y + in.second.scale_sum.y);
}
