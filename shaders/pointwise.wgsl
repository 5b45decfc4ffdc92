// y[P, N] = activation(x[P, K] * w[K, N] + bias (+ residual)): a 1 x 1 convolution, in vec4 over K and over N.
// One invocation keeps a tile of PIXELS x (OUTS * 4) sums in registers: no barrier. Where that leaves too few invocations
// to fill the device, SPLITS of them share a tile, each with every SPLITS-th part of K, and their sums meet once in
// workgroup memory.

//#include "activation.wgsl"
//#include "flat_index.wgsl"

@group(0) @binding(0) var<storage, read_write> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> w: array<vec4f>;
@group(0) @binding(2) var<storage, read> bias: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4f>;
//#if RESIDUAL
@group(0) @binding(4) var<storage, read_write> residual: array<vec4f>;
//#endif

// P pixels, K and N in vec4, and tiles side by side along N.
struct Figures { P: u32, K4: u32, N4: u32, tiles: u32 }
@group(0) @binding(5) var<uniform> figures: Figures;

const LANES = ${WG // SPLITS}u;                     // tiles a workgroup

//#if SPLITS > 1
var<workgroup> parts: array<vec4f, ${WG * PIXELS * OUTS}>;
//#endif

fn finish(pixel: u32, out: u32, sum: vec4f) {
    if (pixel < figures.P && out < figures.N4) {
        let at = pixel * figures.N4 + out;
//#if RESIDUAL
        y[at] = activate(sum + bias[out] + residual[at]);
//#else
        y[at] = activate(sum + bias[out]);
//#endif
    }
}

@compute @workgroup_size(${WG})
fn main(
    @builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) local: u32
) {
    let tile = flat_group(group, groups) * LANES + local % LANES;
    let part = local / LANES;
    let pixel = tile / figures.tiles * ${PIXELS}u;
    let out = tile % figures.tiles * ${OUTS}u;
    let K4 = figures.K4;
    let N4 = figures.N4;
//#for r in PIXELS
    let x${r} = min(pixel + ${r}u, figures.P - 1u) * K4;
//#for o in OUTS
    var a${r}_${o} = vec4f(0.0);
//#endfor
//#endfor
//#for o in OUTS
    let o${o} = min(out + ${o}u, N4 - 1u);
//#endfor
    for (var k = part; k < K4; k += ${SPLITS}u) {
//#for r in PIXELS
        let v${r} = x[x${r} + k];
//#endfor
        let row = k * 4u * N4;
//#for o in OUTS
        {
            let w0 = w[row + o${o}];
            let w1 = w[row + N4 + o${o}];
            let w2 = w[row + 2u * N4 + o${o}];
            let w3 = w[row + 3u * N4 + o${o}];
//#for r in PIXELS
            a${r}_${o} += v${r}.x * w0 + v${r}.y * w1 + v${r}.z * w2 + v${r}.w * w3;
//#endfor
        }
//#endfor
    }
//#if SPLITS > 1
//#for r in PIXELS
//#for o in OUTS
    parts[${r * OUTS + o}u * ${WG}u + local] = a${r}_${o};
//#endfor
//#endfor
    workgroupBarrier();
    // The splits share the rows of their tile.
    for (var i = part; i < ${PIXELS * OUTS}u; i += ${SPLITS}u) {
        var sum = parts[i * ${WG}u + local % LANES];
        for (var s = 1u; s < ${SPLITS}u; s++) {
            sum += parts[i * ${WG}u + s * LANES + local % LANES];
        }
        finish(pixel + i / ${OUTS}u, out + i % ${OUTS}u, sum);
    }
//#else
//#for r in PIXELS
//#for o in OUTS
    finish(pixel + ${r}u, out + ${o}u, a${r}_${o});
//#endfor
//#endfor
//#endif
}
