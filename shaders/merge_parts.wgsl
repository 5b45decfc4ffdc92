// The parts of attention (attention_partials.wgsl) put together column by column into the tile of inputs: what up to MERGE
// parts have in a column is on its way from memory together with the maxima and sums of all. Fewer parts have code of their
// own with fewer loads, 8 at least: a short context does not pay for a long one. What a part counts for is made once for
// all columns of its head, by GANG neighbours with four parts each at a time, and meets the columns in workgroup memory.
// SPLITS is a multiple of 4 * GANG, MERGE 8 times a power of two, GANG a power of two and LANES at most.
//#include "attention_length.wgsl"

const GANG = ${GANG}u;

var<workgroup> weights: array<vec4f, ${K // D * SPLITS // 4}>; // [head, four parts]

// Of parts of a head, four at a time: (largest score, sum of exponentials). GANG invocations have a head; where there are
// more heads than gangs, they go round.
struct AskedStats {
//#for h in -(-(K // D * GANG) // WG)
//#for q in SPLITS // 4 // GANG
//#for j in 4
    s${h}_${q}_${j}: vec2f,
//#endfor
//#endfor
//#endfor
}

fn ask_stats(parts: u32, local: u32) -> AskedStats {
    var asked: AskedStats;
//#for h in -(-(K // D * GANG) // WG)
    let head${h} = min(local / GANG + ${h * (WG // GANG)}u, ${K // D - 1}u);
//#for q in SPLITS // 4 // GANG
//#for j in 4
    let part${h}_${q}_${j} = min(local % GANG * 4u + ${4 * q * GANG + j}u, parts - 1u);
    asked.s${h}_${q}_${j} = x[(head${h} * ${SPLITS}u + part${h}_${q}_${j}) * ${D // 4 + 1}u + ${D // 4}u].xy;
//#endfor
//#endfor
//#endfor
    return asked;
}

// exp(largest score of a part - that of all) / (sum of all exponentials); 0 for parts that there are not.
fn put_weights(asked: AskedStats, parts: u32, local: u32) {
    let first_part = local % GANG * 4u;
//#for h in -(-(K // D * GANG) // WG)
    {
        var top = -3e38;
//#for q in SPLITS // 4 // GANG
        let used${q} = vec4u(0u, 1u, 2u, 3u) + first_part + ${4 * q * GANG}u < vec4u(parts);
        let tops${q} = vec4f(asked.s${h}_${q}_0.x, asked.s${h}_${q}_1.x, asked.s${h}_${q}_2.x, asked.s${h}_${q}_3.x);
        let seen${q} = select(vec4f(-3e38), tops${q}, used${q});
        top = max(top, max(max(seen${q}.x, seen${q}.y), max(seen${q}.z, seen${q}.w)));
//#endfor
//#for s in GANG.bit_length() - 1
        top = max(top, subgroupShuffleXor(top, ${2 ** s}u));
//#endfor
        var total = 0.0;
//#for q in SPLITS // 4 // GANG
        let sums${q} = vec4f(asked.s${h}_${q}_0.y, asked.s${h}_${q}_1.y, asked.s${h}_${q}_2.y, asked.s${h}_${q}_3.y);
        let weight${q} = exp(seen${q} - top);
        total += dot(weight${q}, sums${q});
//#endfor
//#for s in GANG.bit_length() - 1
        total += subgroupShuffleXor(total, ${2 ** s}u);
//#endfor
        let head = local / GANG + ${h * (WG // GANG)}u;
        if (head < ${K // D}u) {
//#for q in SPLITS // 4 // GANG
            weights[head * ${SPLITS // 4}u + local % GANG + ${q * GANG}u] = weight${q} / total;
//#endfor
        }
    }
//#endfor
}

// Fills the tile with the blocks from ``first`` on, zeros behind the last one.
fn fill(token: u32, first: u32, local: u32) -> f32 {
    let n = state.position + 1u;
    let length = split_length(n);
    let parts = (n + length - 1u) / length;
//#if TILED
    var asked: AskedStats;
    if (first == 0u) {
        asked = ask_stats(parts, local);
    }
//#else
    let asked = ask_stats(parts, local);
//#endif
//#for w in (MERGE // 8).bit_length()
    if (parts > ${4 * 2**w if w else 0}u && parts <= ${8 * 2**w if 8 * 2**w < MERGE else SPLITS}u) {
        for (var round = 0u; round < ${-(-TILE * 8 // WG)}u; round++) {
            let i = round * ${WG}u + local;
            let column = min(first * 8u + i, ${K // 4 - 1}u);
            let head = column / ${D // 4}u;
            let at = head * ${SPLITS * (D // 4 + 1)}u + column % ${D // 4}u;
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
                put_weights(asked, parts, local);
                workgroupBarrier();
            }
            var v = vec4f(0.0);
            for (var s = 0u; s < parts; s += ${8 * 2**w}u) {
//#for f in 2 * 2**w
                if (s + ${4 * f}u < parts) {
                    if (s > 0u) {
//#for j in 4
                        value${4 * f + j} = x[at + min(s + ${4 * f + j}u, parts - 1u) * ${D // 4 + 1}u];
//#endfor
                    }
                    let four = weights[head * ${SPLITS // 4}u + s / 4u + ${f}u];
//#for j in 4
                    v += four[${j}] * value${4 * f + j};
//#endfor
                }
//#endfor
            }
            put(i, select(vec4f(0.0), v, first * 8u + i < NB * 8u));
        }
    }
//#endfor
    return 0.0;
}
