// One slab as a picture: a path for each kind of memory, however many spans there are, redrawn only when they change.

import { h } from "../dom.js";
import { memorySize } from "../format.js";
import { t } from "../i18n.js";
import { KINDS, kindOf, totals } from "./kinds.js";
import { borders, byteAt, grid, outline, pieces, spanAt } from "./layout.js";
import { fill, svg } from "./svg.js";
import { kindTitle, spanWords } from "./words.js";

const FLASH_MS = 1500;
const FILLS = ["free", ...KINDS, "unfilled"];

export class SlabMap {
  #number;
  #caption = h("figcaption.hint");
  #picture = svg("svg.slab", { role: "img" });
  #paths = new Map(FILLS.map((kind) => [kind, svg("path", { "data-kind": kind, fill: fill(kind) })]));
  #borders = svg("path.borders");
  #flashes = svg("g");
  #slab = null;
  #grid = null;
  #drawn = "";

  /** `number` as people count, from 1. `tell(words)` is called with the words for the span under the pointer, or "". */
  constructor(number, tell) {
    this.#number = number;
    this.#picture.append(...this.#paths.values(), this.#borders, this.#flashes);
    for (const name of ["pointermove", "pointerdown"]) {
      this.#picture.addEventListener(name, (event) => tell(this.#under(event)));
    }
    this.#picture.addEventListener("pointerleave", () => tell(""));
    this.element = h("figure.slab-map", { "data-slab": number - 1 }, this.#caption, this.#picture);
  }

  /** Draw a slab of `inspect.memory()` at a width in CSS pixels. Costs next to nothing when neither has changed. */
  show(slab, width) {
    const state = `${width} ${JSON.stringify(slab)}`;
    if (state === this.#drawn) return;
    this.#drawn = state;
    this.#slab = slab;
    this.#grid = grid(slab.size, width);
    this.#picture.setAttribute("width", width);
    this.#picture.setAttribute("height", this.#grid.height);
    this.#paint();
    this.#speak();
  }

  /** Draw anew at the next `show`, whatever it brings: the language has changed. */
  forget() {
    this.#drawn = "";
  }

  /** Light up the places of moves, for a moment. */
  flash(moves) {
    const places = moves.flatMap(({ offset, bytes }) => pieces(this.#grid, offset, bytes));
    const flash = svg("path.moved", { d: outline(places) });
    this.#flashes.append(flash);
    setTimeout(() => flash.remove(), FLASH_MS);
  }

  #speak() {
    const { size, used, role } = this.#slab;
    const figures = { used: memorySize(used), size: memorySize(size) };
    this.#caption.textContent = t("memory.slab", { number: this.#number, role: t(`memory.role.${role}`), ...figures });
    const parts = Object.entries(totals([this.#slab])).filter(([, sum]) => sum.size > 0);
    const words = parts.map(([kind, sum]) => `${kindTitle(kind)} ${memorySize(sum.size)}`);
    this.#picture.setAttribute("aria-label", `${this.#caption.textContent}; ${words.join(", ")}`);
  }

  #paint() {
    const shapes = Object.fromEntries(FILLS.map((kind) => [kind, []]));
    const all = [];
    shapes.free = pieces(this.#grid, 0, this.#slab.size);
    for (const span of this.#slab.spans) {
      const kind = kindOf(span, this.#slab.role);
      const filled = kind === "kv" ? (span.filled ?? span.size) : span.size;
      if (filled > 0) shapes[kind].push(...pieces(this.#grid, span.offset, filled));
      if (filled < span.size) shapes.unfilled.push(...pieces(this.#grid, span.offset + filled, span.size - filled));
      all.push(...pieces(this.#grid, span.offset, span.size));
    }
    for (const [kind, path] of this.#paths) path.setAttribute("d", outline(shapes[kind]));
    this.#borders.setAttribute("d", borders(all));
  }

  #under({ offsetX, offsetY }) {
    const byte = byteAt(this.#grid, offsetX, offsetY);
    if (byte === null) return "";
    return spanWords(this.#number, spanAt(this.#slab.spans, byte, this.#slab.size), this.#slab.role);
  }
}
