// Which hue stands for whom, in the pool bar and in the memory map alike.

const HUES = { language: 0, streamed: 0, vision: 1, workspace: 2, activations: 2, kv: 3, other: 4 };
const COUNT = 5;

/** The class that sets `--hue` for a tenant or a kind of memory; one that is not known takes the next in line. */
export function hueOf(name, index = HUES.other) {
  return `hue-${HUES[name] ?? index % COUNT}`;
}
