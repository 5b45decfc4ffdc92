// What of a start began and ended when, on the one clock of page and worker: ms since 1970, with fractions. What is
// told of a stage also names those that it cannot begin without.

export const now = () => performance.timeOrigin + performance.now();

/** The stages of this page or worker that have ended: {stage, from, to, needs}. */
export const stages = [];

export function ended(stage, from, to, needs = []) {
  stages.push({ stage, from, to, needs });
}

/** What `work` gives, its time kept. */
export async function timed(stage, needs, work) {
  const from = now();
  try {
    return await work();
  } finally {
    ended(stage, from, now(), needs);
  }
}

/** When the files whose addresses hold `part` were on their way, by the browser's own record. */
export function fetched(stage, part, needs) {
  for (const { name, startTime, responseEnd } of performance.getEntriesByType("resource")) {
    if (name.includes(part)) {
      ended(stage, performance.timeOrigin + startTime, performance.timeOrigin + responseEnd, needs);
    }
  }
}

/**
 * Stages as rows in the order in which they began, in whole ms from `zero` on. `waited_for` is the stage that let this
 * one begin: of those that it needs, the one that ended last; empty where it needs none.
 */
export function rows(stages, zero) {
  const ends = new Map(stages.map(({ stage, to }) => [stage, to]));
  const last = (needs) => needs.filter((name) => ends.has(name)).sort((a, b) => ends.get(b) - ends.get(a))[0] ?? "";
  return [...stages]
    .sort((a, b) => a.from - b.from || a.to - b.to)
    .map(({ stage, from, to, needs }) => ({
      stage,
      from_ms: Math.round(from - zero),
      to_ms: Math.round(to - zero),
      waited_for: last(needs),
    }));
}
