// SVG elements, and the fills of the map: a hue and a pattern each, so that colour alone never carries the meaning.

import { hueOf } from "../hues.js";

/** Build an SVG element; `kind` is a tag with optional classes, as for `h`. */
export function svg(kind, props = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// Marks in a tile of 6 x 6 pixels. `unfilled` is the part of the KV cache that holds nothing yet.
const MARKS = {
  language: "",
  streamed: "M0 0L6 6M-1 5L1 7M5 -1L7 1",
  vision: "M1.5 0v6M4.5 0v6",
  kv: "M2 3h2M5 0h2M5 6h2M-1 0h2M-1 6h2",
  unfilled: "M2 3h2M5 0h2M5 6h2M-1 0h2M-1 6h2",
  activations: "M0 1.5h6M0 4.5h6",
  other: "M0 0L6 6M0 6L6 0",
  free: "M0 6L6 0M-1 1L1 -1M5 7L7 5",
};

const address = (kind) => `memory-fill-${kind}`;

/** The fill of a kind, as the value of an SVG attribute. */
export const fill = (kind) => `url(#${address(kind)})`;

/** The element that holds the patterns; it has to be in the document once, and is not seen. */
export function patterns() {
  const pattern = ([kind, marks]) =>
    svg(
      `pattern.fill-${kind}.${hueOf(kind === "unfilled" ? "kv" : kind)}`,
      { id: address(kind), width: 6, height: 6, patternUnits: "userSpaceOnUse" },
      svg("rect.ground", { width: 6, height: 6 }),
      svg("path.marks", { d: marks }),
    );
  return svg("svg.patterns", { width: 0, height: 0, "aria-hidden": "true" }, ...Object.entries(MARKS).map(pattern));
}

/** A small square with the fill of a kind, for the legend. */
export function swatch(kind) {
  const square = svg("rect", { width: 12, height: 12, rx: 3, fill: fill(kind) });
  return svg("svg.fill-swatch", { width: 12, height: 12, "aria-hidden": "true" }, square);
}
