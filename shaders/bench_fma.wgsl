// Multiplications and additions in CHAINS chains of vec4 that do not wait for each other: how fast a device computes in
// float32 with nothing to read.
@group(0) @binding(0) var<storage, read_write> out: array<vec4f>;

@compute @workgroup_size(${WG})
fn main(@builtin(local_invocation_index) local: u32) {
    let zero = out[0]; // which no compiler knows
    let factor = zero + 0.75;
    let term = zero + 0.5;
//#for r in CHAINS
    var a${r} = zero + f32(local + ${r}u);
//#endfor
    for (var i = 0u; i < ${TRIPS}u; i++) {
//#for r in CHAINS
        a${r} = fma(a${r}, factor, term);
//#endfor
    }
    var sum = vec4f(0.0);
//#for r in CHAINS
    sum += a${r};
//#endfor
    if (sum.x < 0.0) {
        out[1] = sum;
    }
}
