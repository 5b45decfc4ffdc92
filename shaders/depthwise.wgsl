// y[h', w', C] = activation(each channel's own convolution + bias), in vec4 over channels; w is [kernel * kernel, C].
// One invocation: four channels of RUN neighbouring pixels of a row, which share the inputs and the weights they read.

//#include "activation.wgsl"
//#include "flat_index.wgsl"

@group(0) @binding(0) var<storage, read_write> x: array<vec4f>;
@group(0) @binding(1) var<storage, read> w: array<vec4f>;
@group(0) @binding(2) var<storage, read> bias: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4f>;

const C4 = ${C // 4}u;
const RUNS = ${(WO + RUN - 1) // RUN}u;     // runs in a row

@compute @workgroup_size(${WG})
fn main(
    @builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) local: u32
) {
    let index = flat_group(group, groups) * ${WG}u + local;
    if (index >= ${HO}u * RUNS * C4) {
        return;
    }
    let c = index % C4;
    let out_column = index / C4 % RUNS * ${RUN}u;
    let out_row = index / C4 / RUNS;
    let left = i32(out_column) * ${STRIDE} - ${LEFT};
    let top = i32(out_row) * ${STRIDE} - ${TOP};
    let start = bias[c];
//#for r in RUN
    var a${r} = start;
//#endfor
    for (var ky = 0; ky < ${KERNEL}; ky++) {
        let row = top + ky;
        if (row < 0 || row >= ${H}) {
            continue;
        }
        let source = row * ${W};
//#for i in (RUN - 1) * STRIDE + KERNEL
        // Clamped, then dropped: a read past the edge must still be a read of x.
        let v${i} = select(vec4f(0.0), x[u32(source + clamp(left + ${i}, 0, ${W - 1})) * C4 + c], left + ${i} >= 0 && left + ${i} < ${W});
//#endfor
        let tap = u32(ky) * ${KERNEL}u * C4 + c;
//#for kx in KERNEL
        let w${kx} = w[tap + ${kx}u * C4];
//#for r in RUN
        a${r} += v${r * STRIDE + kx} * w${kx};
//#endfor
//#endfor
    }
    let to = (out_row * ${WO}u + out_column) * C4 + c;
//#for r in RUN
    if (out_column + ${r}u < ${WO}u) {
        y[to + ${r}u * C4] = activate(a${r});
    }
//#endfor
}
