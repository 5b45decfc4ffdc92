// What the bench makes of what it repeats.

export const median = (values) => [...values].sort((a, b) => a - b)[Math.floor(values.length / 2)];
export const spread = (values) => [Math.min(...values), Math.max(...values)].map((value) => Number(value.toFixed(3)));

/** ms until what `work` returns is settled. */
export async function timed(work) {
  const start = performance.now();
  await work();
  return performance.now() - start;
}
