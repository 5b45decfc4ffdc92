// Attention is split over the context: part s covers positions [s * length, (s + 1) * length). Each part leaves for each
// head its unnormalised sum of values [D], the largest score and the sum of exponentials; this puts them together.
//#include "attention_length.wgsl"

// Four values of the merged vector, from ``i`` vec4 on. The parts are read by fours, so that their loads overlap.
fn merged_input(i: u32) -> vec4f {
    let n = state.position + 1u;
    let length = split_length(n);
    let parts = (n + length - 1u) / length;
    let base = i / ${D // 4}u * ${SPLITS * (D // 4 + 1)}u;
    let column = i % ${D // 4}u;
    var top = -3e38;
    var total = 0.0;
    var v = vec4f(0.0);
    for (var s = 0u; s < parts; s += 4u) {
//#for j in 4
        let at${j} = base + min(s + ${j}u, parts - 1u) * ${D // 4 + 1}u;
        let part${j} = x[at${j} + ${D // 4}u];
        let value${j} = x[at${j} + column];
//#endfor
        let next = max(top, max(max(part0.x, part1.x), max(part2.x, part3.x)));
        let keep = exp(top - next);
        total *= keep;
        v *= keep;
//#for j in 4
        let weight${j} = select(0.0, exp(part${j}.x - next), s + ${j}u < parts);
        total += weight${j} * part${j}.y;
        v += weight${j} * value${j};
//#endfor
        top = next;
    }
    return v * (1.0 / total);
}

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
