// Nothing, in different pipelines by VARIANT: what a dispatch costs that has nothing to do.
const VARIANT = ${VARIANT}u;

@group(0) @binding(0) var<storage, read_write> out: array<u32>;

@compute @workgroup_size(${WG})
fn main() {
}
