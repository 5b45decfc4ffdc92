// The tile of inputs of matvec.wgsl as floats: 8 vec4 a block, times UNIT, and apart from them the plain sums of each 16.
var<workgroup> tile: array<vec4f, ${(TILE + 1) * 9}>;
var<workgroup> sums: array<f32, ${(TILE + 1) * 2}>;

// Puts four inputs into the tile at vec4 ``i`` of it; neighbours call it together.
fn put(i: u32, v: vec4f) {
    var sum = dot(v, vec4f(1.0));
    sum += subgroupShuffleXor(sum, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    if (i < ${TILE * 8}u) {
        tile[i / 8u * PITCH + i % 8u] = v * UNIT;
        if (i % 4u == 0u) {
            sums[i / 4u] = sum;
        }
    }
}

// Puts the zeros behind the last block.
fn put_end(local: u32) {
    if (local < PITCH) {
        tile[${TILE}u * PITCH + local] = vec4f(0.0);
    }
    if (local < 2u) {
        sums[${TILE * 2}u + local] = 0.0;
    }
}

fn inputs(b: u32) -> Inputs {
    let at = b * PITCH;
    return Inputs(tile[at], tile[at + 1u], tile[at + 2u], tile[at + 3u], tile[at + 4u], tile[at + 5u], tile[at + 6u],
        tile[at + 7u], vec2f(sums[b * 2u], sums[b * 2u + 1u]));
}

// Block ``at`` of all rows' blocks times these inputs.
fn times(raw: Raw, at: u32, in: Inputs) -> f32 {
    return block_dot(expand(raw, at), in);
}
