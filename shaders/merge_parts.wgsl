// The parts of attention (attention_partials.wgsl) put together column by column into the tile of inputs: what up to MERGE
// parts have in a column is on its way from memory together with the maxima and sums of all, which meet in workgroup
// memory. Fewer parts have code of their own with fewer loads, 8 at least: a short context does not pay for a long one.
// SPLITS is a multiple of 4, MERGE 8 times a power of two.
//#include "attention_length.wgsl"

var<workgroup> stats: array<vec2f, ${K // D * SPLITS}>; // [head, part]: the largest score, the sum of exponentials

// Fills the tile with the blocks from ``first`` on, zeros behind the last one.
fn fill(token: u32, first: u32, local: u32) -> f32 {
    let n = state.position + 1u;
    let length = split_length(n);
    let parts = (n + length - 1u) / length;
    if (first == 0u) {
        let used = (parts + 3u) / 4u * 4u;
        for (var i = local; i < ${K // D}u * used; i += ${WG}u) {
            let part = i % used;
            let at = i / used * ${SPLITS}u;
            let stat = x[(at + min(part, parts - 1u)) * ${D // 4 + 1}u + ${D // 4}u].xy;
            stats[at + part] = select(vec2f(-3e38, 0.0), stat, part < parts);
        }
    }
//#for w in (MERGE // 8).bit_length()
    if (parts > ${4 * 2**w if w else 0}u && parts <= ${8 * 2**w if 8 * 2**w < MERGE else SPLITS}u) {
        for (var round = 0u; round < ${-(-TILE * 8 // WG)}u; round++) {
            let i = round * ${WG}u + local;
            let column = min(first * 8u + i, ${K // 4 - 1}u);
            let head = column / ${D // 4}u * ${SPLITS}u;
            let at = head * ${D // 4 + 1}u + column % ${D // 4}u;
//#for j in 8 * 2**w
            var value${j} = vec4f(0.0);
//#endfor
//#for f in 2 * 2**w
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
            for (var s = 0u; s < parts; s += ${8 * 2**w}u) {
//#for f in 2 * 2**w
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
    }
//#endfor
    return 0.0;
}
