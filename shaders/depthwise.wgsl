// y[h', w', C] = activation(each channel's own convolution + bias), in vec4 over channels; w is [kernel * kernel, C].
// One invocation: four channels of RUN neighbouring pixels of a row, which share the inputs and the weights they read.

//#include "activation.wgsl"
//#include "flat_index.wgsl"

@group(0) @binding(0) var<storage, read_write> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> w: array<vec4f>;
@group(0) @binding(2) var<storage, read> bias: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4f>;

// Rows and columns in and out, zeros above and to the left, channels in vec4, and runs in a row.
struct Figures { H: i32, W: i32, HO: u32, WO: u32, top: i32, left: i32, C4: u32, runs: u32 }
@group(0) @binding(5) var<uniform> figures: Figures;

@compute @workgroup_size(${WG})
fn main(
    @builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) local: u32
) {
    let index = flat_group(group, groups) * ${WG}u + local;
    let C4 = figures.C4;
    let W = figures.W;
    if (index >= figures.HO * figures.runs * C4) {
        return;
    }
    let c = index % C4;
    let out_column = index / C4 % figures.runs * ${RUN}u;
    let out_row = index / C4 / figures.runs;
    let left = i32(out_column) * ${STRIDE} - figures.left;
    let top = i32(out_row) * ${STRIDE} - figures.top;
    let start = bias[c];
//#for r in RUN
    var a${r} = start;
//#endfor
    for (var ky = 0; ky < ${KERNEL}; ky++) {
        let row = top + ky;
        if (row < 0 || row >= figures.H) {
            continue;
        }
        let source = row * W;
//#for i in (RUN - 1) * STRIDE + KERNEL
        // Clamped, then dropped: a read past the edge must still be a read of x.
        let v${i} = select(vec4f(0.0), x[u32(source + clamp(left + ${i}, 0, W - 1)) * C4 + c], left + ${i} >= 0 && left + ${i} < W);
//#endfor
        let tap = u32(ky) * ${KERNEL}u * C4 + c;
//#for kx in KERNEL
        let w${kx} = w[tap + ${kx}u * C4];
//#for r in RUN
        a${r} += v${r * STRIDE + kx} * w${kx};
//#endfor
//#endfor
    }
    let to = (out_row * figures.WO + out_column) * C4 + c;
//#for r in RUN
    if (out_column + ${r}u < figures.WO) {
        y[to + ${r}u * C4] = activate(a${r});
    }
//#endfor
}
