// The map in figures: a row for every span, for those who cannot or would rather not read a picture.

import { h } from "../dom.js";
import { decimal, memorySize } from "../format.js";
import { say, t } from "../i18n.js";
import { kindOf } from "./kinds.js";
import { filledWords, kindTitle } from "./words.js";

// More rows than anybody reads; what is beyond them is summed up in one sentence.
const MOST = 400;
const COLUMNS = ["tenant", "block", "bytes", "where"];

export class SpanTable {
  #rows = h("tbody");
  #rest = h("p.hint");
  #slabs = [];

  constructor() {
    const head = COLUMNS.map((column) => say(h("th", { scope: "col" }), `memory.column.${column}`));
    const table = h("table", {}, h("thead", {}, h("tr", {}, ...head)), this.#rows);
    // It scrolls by itself, so the keyboard has to reach it.
    const box = h("div.table-box", { role: "region", tabindex: "0" }, table);
    const title = say(h("summary"), "memory.table");
    say(box, "memory.table", {}, "aria-label");
    this.element = h("details.spans", { ontoggle: () => this.draw() }, title, box, this.#rest);
  }

  show(slabs) {
    this.#slabs = slabs;
    this.draw();
  }

  /** Rows are written over in place, and only what differs, so that a reader keeps their place while blocks move. */
  draw() {
    if (!this.element.open) return;
    const all = this.#slabs.flatMap(({ spans, role }, slab) => spans.map((span) => [slab + 1, span, role]));
    const shown = all.slice(0, MOST);
    while (this.#rows.rows.length > shown.length) this.#rows.deleteRow(-1);
    shown.forEach((entry, index) => write(this.#rows.rows[index] ?? this.#newRow(), entry));
    const left = all.slice(MOST);
    const size = memorySize(left.reduce((sum, [, span]) => sum + span.size, 0));
    this.#rest.textContent = left.length ? t("memory.more", { count: decimal(left.length, 0), size }) : "";
  }

  #newRow() {
    const row = this.#rows.insertRow();
    for (let cell = 0; cell < COLUMNS.length; cell++) row.insertCell();
    row.cells[1].lang = "en";
    return row;
  }
}

function write(row, [slab, span, role]) {
  const where = t("memory.where", { slab, offset: memorySize(span.offset) });
  const words = [kindTitle(kindOf(span, role)), span.label, memorySize(span.size) + filledWords(span), where];
  words.forEach((word, index) => {
    if (row.cells[index].textContent !== word) row.cells[index].textContent = word;
  });
}
