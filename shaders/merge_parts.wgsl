// The parts of attention (attention_partials.wgsl) put together column by column into the tile of inputs: what the first
// MERGE parts have in a column is on its way from memory together with the maxima and sums of all, which meet in workgroup
// memory. SPLITS and MERGE are multiples of 4.
//#include "attention_length.wgsl"

var<workgroup> stats: array<vec2f, ${K // D * SPLITS}>; // [head, part]: the largest score, the sum of exponentials

// Fills the tile with the blocks from ``first`` on, zeros behind the last one.
fn fill(token: u32, first: u32, local: u32) -> f32 {
    let n = state.position + 1u;
    let length = split_length(n);
    let parts = (n + length - 1u) / length;
    if (first == 0u) {
        for (var i = local; i < ${K // D * SPLITS}u; i += ${WG}u) {
            let stat = x[i * ${D // 4 + 1}u + ${D // 4}u].xy;
            stats[i] = select(vec2f(-3e38, 0.0), stat, i % ${SPLITS}u < parts);
        }
    }
    for (var round = 0u; round < ${-(-TILE * 8 // WG)}u; round++) {
        let i = round * ${WG}u + local;
        let column = min(first * 8u + i, ${K // 4 - 1}u);
        let head = column / ${D // 4}u * ${SPLITS}u;
        let at = head * ${D // 4 + 1}u + column % ${D // 4}u;
//#for j in MERGE
        var value${j} = vec4f(0.0);
//#endfor
//#for f in MERGE // 4
        if (${4 * f}u < parts) {
//#for j in 4
            value${4 * f + j} = x[at + min(${4 * f + j}u, parts - 1u) * ${D // 4 + 1}u];
//#endfor
        }
//#endfor
        if (first == 0u && round == 0u) {
            workgroupBarrier();
        }
        var top = -3e38;
        for (var s = head; s < head + parts; s += 4u) {
            top = max(top, max(max(stats[s].x, stats[s + 1u].x), max(stats[s + 2u].x, stats[s + 3u].x)));
        }
        var total = 0.0;
        var v = vec4f(0.0);
        for (var s = 0u; s < parts; s += ${MERGE}u) {
//#for f in MERGE // 4
            if (s + ${4 * f}u < parts) {
                if (s > 0u) {
//#for j in 4
                    value${4 * f + j} = x[at + min(s + ${4 * f + j}u, parts - 1u) * ${D // 4 + 1}u];
//#endfor
                }
//#for j in 4
                let stat${j} = stats[head + s + ${4 * f + j}u];
                let weight${j} = exp(stat${j}.x - top);
                total += weight${j} * stat${j}.y;
                v += weight${j} * value${4 * f + j};
//#endfor
            }
//#endfor
        }
        put(i, select(vec4f(0.0), v / total, first * 8u + i < NB * 8u));
    }
    return 0.0;
}
