// y[h', w', C'] = activation(conv(normalised bytes) + bias): a dense convolution straight from a picture's bytes.
// x is packed u8 [h, w, CIN], four bytes a word; w is [kernel * kernel * CIN, C'] in vec4 over C'. The zeros around the
// picture are zeros after normalisation, so a tap outside adds nothing.
// One invocation: one pixel, GROUPS vec4 of outputs, so that a byte is unpacked once for all of them.

//#include "activation.wgsl"
//#include "flat_index.wgsl"

@group(0) @binding(0) var<storage, read_write> x: array<u32>;
@group(0) @binding(1) var<storage, read> w: array<vec4f>;
@group(0) @binding(2) var<storage, read> bias: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4f>;

const C4 = ${COUT // 4}u;
const PARTS = ${COUT // 4 // GROUPS}u;     // invocations that share a pixel

fn value(at: u32) -> f32 {
    return (f32(extractBits(x[at / 4u], (at % 4u) * 8u, 8u)) - ${MEAN}) * ${1.0 / SCALE};
}

@compute @workgroup_size(${WG})
fn main(
    @builtin(workgroup_id) group: vec3u, @builtin(num_workgroups) groups: vec3u, @builtin(local_invocation_index) local: u32
) {
    let index = flat_group(group, groups) * ${WG}u + local;
    let pixel = index / PARTS;
    if (pixel >= ${HO * WO}u) {
        return;
    }
    let first = index % PARTS * ${GROUPS}u;
    let top = i32(pixel / ${WO}u) * ${STRIDE} - ${TOP};
    let left = i32(pixel % ${WO}u) * ${STRIDE} - ${LEFT};
//#for g in GROUPS
    var a${g} = bias[first + ${g}u];
//#endfor
    for (var ky = 0; ky < ${KERNEL}; ky++) {
        let row = top + ky;
        if (row < 0 || row >= ${H}) {
            continue;
        }
        for (var kx = 0; kx < ${KERNEL}; kx++) {
            let column = left + kx;
            if (column < 0 || column >= ${W}) {
                continue;
            }
            let source = u32(row * ${W} + column) * ${CIN}u;
            let tap = u32(ky * ${KERNEL} + kx) * ${CIN}u;
//#for c in CIN
            {
                let v = value(source + ${c}u);
                let at = (tap + ${c}u) * C4 + first;
//#for g in GROUPS
                a${g} += v * w[at + ${g}u];
//#endfor
            }
//#endfor
        }
    }
//#for g in GROUPS
    y[pixel * C4 + first + ${g}u] = activate(a${g});
//#endfor
}
