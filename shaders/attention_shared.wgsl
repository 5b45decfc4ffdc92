// What attention binds that takes all heads together which share a head of the cache.
//#include "state.wgsl"

@group(0) @binding(0) var<storage, read_write> q: array<vec4f>;
//#if HALF_CACHE
@group(0) @binding(1) var<storage, read_write> kv: array<vec2u>;
//#else
@group(0) @binding(1) var<storage, read_write> kv: array<vec4f>;
//#endif
@group(0) @binding(2) var<storage, read_write> y: array<vec4f>;
@group(0) @binding(3) var<uniform> state: State;

const D4 = ${D // 4}u;
const KV4 = ${KV_HEADS * D // 4}u;
const SHARERS = ${HEADS // KV_HEADS}u;      // heads that share a head of the cache
