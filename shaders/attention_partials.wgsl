// Attention is split over the context: part s covers positions [s * length, (s + 1) * length). Each part leaves for each
// head its unnormalised sum of values [D], the largest score and the sum of exponentials; this puts them together.
//#include "attention_length.wgsl"

fn merged_inputs(b: u32) -> Inputs {
    let n = state.position + 1u;
    let length = split_length(n);
    let parts = (n + length - 1u) / length;
    let head = b / ${D // 32}u;
    let column = (b % ${D // 32}u) * 8u;
    let base = head * ${SPLITS * (D // 4 + 1)}u;
    var top = -3e38;
    for (var s = 0u; s < parts; s++) {
        top = max(top, x[base + s * ${D // 4 + 1}u + ${D // 4}u].x);
    }
    var total = 0.0;
//#for i in 8
    var v${i} = vec4f(0.0);
//#endfor
    for (var s = 0u; s < parts; s++) {
        let at = base + s * ${D // 4 + 1}u;
        let part = x[at + ${D // 4}u];
        let weight = exp(part.x - top);
        total += weight * part.y;
//#for i in 8
        v${i} += weight * x[at + column + ${i}u];
//#endfor
    }
    let scale = 1.0 / total;
    return with_sums(v0 * scale, v1 * scale, v2 * scale, v3 * scale, v4 * scale, v5 * scale, v6 * scale, v7 * scale);
}
