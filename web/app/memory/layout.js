// Where the bytes of a slab lie on the screen: rows of equal length, read like text. Lengths are CSS pixels.

// A layer of the smallest model (2 MiB) is then 8 pixels wide, on a phone too.
const BYTES_PER_PIXEL = 2 ** 18;
// What is smaller than a pixel is drawn as one, so that nothing that is there goes unseen.
const LEAST = 1;
export const ROW = 16;
export const GAP = 3;

/** How a slab of `size` bytes is laid out at that width: { size, width, rows, perRow (bytes), height }. */
export function grid(size, width) {
  const rows = Math.max(1, Math.ceil(size / (width * BYTES_PER_PIXEL)));
  return { size, width, rows, perRow: size / rows, height: rows * (ROW + GAP) - GAP };
}

/** The rectangles [{ x, y, width }] of bytes [offset, offset + size): one for each row that they touch. */
export function pieces({ width, rows, perRow }, offset, size) {
  const found = [];
  const end = Math.min(offset + size, rows * perRow);
  for (let row = Math.floor(offset / perRow); row < rows && row * perRow < end; row++) {
    const from = (Math.max(0, offset - row * perRow) / perRow) * width;
    const to = (Math.min(perRow, end - row * perRow) / perRow) * width;
    const wide = Math.max(LEAST, to - from);
    found.push({ x: Math.min(from, width - wide), y: row * (ROW + GAP), width: wide });
  }
  return found;
}

/** SVG path data for rectangles. One path for all spans of a kind keeps a map of thousands of spans a few elements. */
export function outline(rectangles) {
  return rectangles.map(({ x, y, width }) => `M${fixed(x)} ${y}h${fixed(width)}v${ROW}h${fixed(-width)}z`).join("");
}

/** SVG path data for the line at the beginning of each rectangle that is wide enough to be told from its neighbour. */
export function borders(rectangles) {
  const wide = rectangles.filter(({ x, width }) => x > 0 && width >= 4);
  return wide.map(({ x, y }) => `M${fixed(x)} ${y}v${ROW}`).join("");
}

/** The byte of the slab under a point, or null between the rows. */
export function byteAt({ size, width, rows, perRow }, x, y) {
  const row = Math.floor(y / (ROW + GAP));
  if (x < 0 || x >= width || row < 0 || row >= rows || y - row * (ROW + GAP) >= ROW) return null;
  return Math.min(size - 1, Math.floor((row + x / width) * perRow));
}

/** The span that holds a byte, or the gap around it as { offset, size, tenant: null }. `spans` are in order. */
export function spanAt(spans, byte, size) {
  let low = 0;
  let high = spans.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (spans[middle].offset <= byte) low = middle + 1;
    else high = middle;
  }
  const before = spans[low - 1];
  const start = before ? before.offset + before.size : 0;
  if (before && byte < start) return before;
  return { offset: start, size: (spans[low]?.offset ?? size) - start, tenant: null };
}

const fixed = (value) => Number(value.toFixed(2));
