// What a span of a slab is, as the map tells it apart: whose weights, KV cache, activations, or something else.

/** Every kind of memory in use, in the order of the legend. */
export const KINDS = ["language", "streamed", "vision", "kv", "activations", "other"];

/** The kind of a span { tenant, label, streamed } in a slab of that role ("weights" or "workspace"). */
export function kindOf({ tenant, label, streamed = false }, role) {
  if (role === "workspace") {
    if (tenant === "activations") return "activations";
    return /(^|\.)kv$/.test(label) ? "kv" : "other";
  }
  if (tenant === "language") return streamed ? "streamed" : "language";
  return tenant === "vision" ? "vision" : "other";
}

/**
 * Bytes of each kind over all slabs, and what is free: { language: { size, filled }, ..., free: { size, filled } }.
 * `filled` is null for a kind of which no span says how much of it holds anything.
 */
export function totals(slabs) {
  const sums = Object.fromEntries([...KINDS, "free"].map((kind) => [kind, { size: 0, filled: null }]));
  for (const { size, role, spans } of slabs) {
    sums.free.size += size;
    for (const span of spans) {
      const sum = sums[kindOf(span, role)];
      sum.size += span.size;
      sums.free.size -= span.size;
      if (Number.isFinite(span.filled)) sum.filled = (sum.filled ?? 0) + span.filled;
    }
  }
  return sums;
}
