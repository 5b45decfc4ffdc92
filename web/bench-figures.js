// What the bench makes of what it repeats.

export const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
export const spread = (values) => [Math.min(...values), Math.max(...values)].map((value) => Number(value.toFixed(3)));

/** Tokens a second of a decode of `tokens` behind the first one: `whole` ms in all, `first` the first one alone. Null where
 * they took no longer than that: by the grain of the clock. */
export const decodeRate = (tokens, whole, first) => (whole > first ? (tokens * 1000) / (whole - first) : null);

/** A prompt of `length` ids: these, over and over. */
export const promptOf = (ids, length) => Array.from({ length }, (_, i) => ids[i % ids.length]);

/** ms until what `work` returns is settled. */
export async function timed(work) {
  const start = performance.now();
  await work();
  return performance.now() - start;
}
