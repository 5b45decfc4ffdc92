// Which moves are new since the last look: `inspect.memory()` reports a window of the latest ones, oldest first.

const FIELDS = ["at", "tenant", "label", "slab", "offset", "bytes", "direction"];
const key = (move) => JSON.stringify(FIELDS.map((field) => move[field]));

/**
 * The moves of `now` that came after those of `before`, both windows as reported. The windows are laid over each other
 * as far as they agree; after a rebuild of the device, or after more moves than a window holds, all of `now` is new.
 */
export function fresh(before, now) {
  const old = before.map(key);
  const reported = now.map(key);
  for (let shared = Math.min(old.length, reported.length); shared > 0; shared--) {
    const start = old.length - shared;
    if (reported.slice(0, shared).every((move, index) => move === old[start + index])) return now.slice(shared);
  }
  return now;
}
