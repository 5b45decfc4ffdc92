// The memory map: what lies where in the pool, what moves, and what was decided. It looks only while it is looked at.

import { h, oncePerFrame } from "../dom.js";
import { memorySize } from "../format.js";
import { inWords, onLanguage, say, t } from "../i18n.js";
import { Legend } from "./legend.js";
import { Happenings } from "./lists.js";
import { fresh } from "./moves.js";
import { Poller } from "./poller.js";
import { SlabMap } from "./slab.js";
import { patterns } from "./svg.js";
import { SpanTable } from "./table.js";
import { decisionLine, moveLine } from "./words.js";

export class MemoryPanel {
  #sentence = h("p.hint", { role: "status" });
  #legend = new Legend();
  #slabs = h("div.slabs");
  #readout = h("p.hint.readout", { "aria-hidden": "true" });
  #figures = h("p.hint.figures");
  #table = new SpanTable();
  #moves = new Happenings("memory.moves", "memory.none", moveLine);
  #decisions = new Happenings("memory.decisions", "memory.none", decisionLine);
  #map;
  #maps = [];
  #memory = null;
  #error = null;
  #drawn = "";
  // The window of moves as last reported; null before the first report.
  #reported = null;
  #ask;
  #poller;

  /**
   * `ask()` promises `client.inspect.memory()`, or null while there is no client. `atWork()`: is the client busy, so
   * that blocks may move at any moment?
   */
  constructor(ask, atWork) {
    this.#ask = ask;
    this.#poller = new Poller(() => this.#look(), atWork);
    this.#map = h(
      "div.map",
      { hidden: true },
      patterns(),
      this.#legend.element,
      this.#slabs,
      this.#readout,
      this.#figures,
      this.#table.element,
      this.#moves.element,
    );
    this.element = h(
      "details.memory",
      { "data-tandem": "memory", ontoggle: () => this.#watch() },
      say(h("summary"), "memory.title"),
      h("div.memory-body", {}, this.#sentence, this.#map, this.#decisions.element),
    );
    document.addEventListener("visibilitychange", () => this.#watch());
    // Not within the observer's own call: drawing changes the height that it observes.
    new ResizeObserver(oncePerFrame(() => this.#draw())).observe(this.#slabs);
    onLanguage(() => this.#translate());
  }

  /** The decisions of `client.status`, oldest first. */
  decided(decisions) {
    this.#decisions.set(decisions);
  }

  #watch() {
    if (!this.element.open || document.hidden) return this.#poller.stop();
    this.#poller.start();
    this.#explain();
  }

  async #look() {
    let memory = null;
    let error = null;
    try {
      memory = await this.#ask();
    } catch (problem) {
      error = problem;
    }
    // Closed or hidden in the meantime: nobody looks, and the next look will find these moves too.
    if (this.#poller.running) this.#show(memory, error);
  }

  #show(memory, error) {
    this.#memory = memory;
    this.#error = error;
    this.#map.hidden = !memory;
    this.#explain();
    if (!memory) return;
    this.#draw();
    const moved = fresh(this.#reported ?? [], memory.moves);
    this.#moves.add(moved);
    // What moved before the first look is history: it is listed, but nothing lights up for it.
    if (this.#reported) this.#maps.forEach((map, slab) => flash(map, moved.filter((move) => move.slab === slab)));
    this.#reported = memory.moves;
  }

  #explain() {
    let words = "";
    if (this.#error) {
      const { code, message, details } = this.#error;
      const loading = details?.cause?.code === "loading";
      const none = t(loading ? "memory.waiting" : "memory.no_device");
      words = code === "no_device" ? none : inWords(code, String(message)).summary;
    } else if (!this.#memory) {
      words = t("memory.waiting");
    }
    // Writing the same words again would make screen readers repeat them.
    if (this.#sentence.textContent !== words) this.#sentence.textContent = words;
  }

  #draw() {
    const width = Math.floor(this.#slabs.clientWidth);
    if (!this.#memory || !width) return;
    const { slabs, live, peak, budget, moved } = this.#memory;
    const state = JSON.stringify([width, slabs, live, peak, budget, moved]);
    if (state === this.#drawn) return;
    this.#drawn = state;
    while (this.#maps.length > slabs.length) this.#maps.pop().element.remove();
    while (this.#maps.length < slabs.length) {
      const map = new SlabMap(this.#maps.length + 1, (words) => this.#tell(words));
      this.#maps.push(map);
      this.#slabs.append(map.element);
    }
    slabs.forEach((slab, index) => this.#maps[index].show(slab, width));
    this.#legend.show(slabs);
    this.#table.show(slabs);
    const held = { live: memorySize(live), peak: memorySize(peak), budget: memorySize(budget) };
    const traffic = { bytes: memorySize(moved.bytes), uploads: moved.uploads };
    this.#figures.textContent = `${t("memory.held", held)} ${t("memory.moved", traffic)}`;
  }

  #tell(words) {
    if (this.#readout.textContent !== words) this.#readout.textContent = words;
  }

  #translate() {
    this.#explain();
    this.#tell("");
    this.#drawn = "";
    for (const map of this.#maps) map.forget();
    this.#draw();
  }
}

function flash(map, moves) {
  if (moves.length) map.flash(moves);
}
