// What a product of a weight matrix binds, whichever kernel it is; its formats, and what its epilogue takes.
//#include "state.wgsl"

@group(0) @binding(0) var<storage, read> wq: array<vec4u>;
//#if SCALES
@group(0) @binding(1) var<storage, read> ws: array<u32>;
//#endif
@group(0) @binding(2) var<storage, read_write> x: array<vec4f>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;
@group(0) @binding(4) var<uniform> state: State;
//#if PROLOGUE == "rms_norm"
@group(0) @binding(5) var<storage, read> gain: array<vec4f>;
//#endif
//#if BIAS
@group(0) @binding(6) var<storage, read> bias: array<f32>;
//#endif
//#if EPILOGUE == "rope_cache"
//#if HALF_CACHE
@group(0) @binding(7) var<storage, read_write> kv: array<u32>;
//#else
@group(0) @binding(7) var<storage, read_write> kv: array<f32>;
//#endif
@group(0) @binding(8) var<storage, read_write> rope: array<vec2f>;
//#endif

const N = ${N}u;            // rows of weight in this dispatch
const NB = ${K // 32}u;     // blocks of 32 columns
const STRIDE = ${STRIDE}u;  // floats from one token's y to the next's

//#include "block.wgsl"
//#if HALF_CACHE

//#include "half_cache.wgsl"
//#endif
