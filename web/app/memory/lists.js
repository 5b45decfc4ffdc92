// Short lists of what happened, newest first: moves of blocks, and decisions about room.

import { h } from "../dom.js";
import { onLanguage, say } from "../i18n.js";

const MOST = 12;

export class Happenings {
  #list = h("ol.happenings");
  #none;
  #line;
  #shown = [];

  /** `title` and `none` are keys of sentences; `line(entry)` makes a list item. */
  constructor(title, none, line) {
    this.#line = line;
    this.#none = say(h("p.hint"), none);
    this.element = h("section", {}, say(h("h3"), title), this.#list, this.#none);
    onLanguage(() => this.#redraw());
  }

  /** Put entries on top, the last one uppermost. The oldest lines leave. */
  add(entries) {
    if (!entries.length) return;
    this.#shown = [...this.#shown, ...entries].slice(-MOST);
    this.#list.prepend(...entries.slice(-MOST).reverse().map(this.#line));
    while (this.#list.childElementCount > MOST) this.#list.lastElementChild.remove();
    this.#none.hidden = true;
  }

  /** Show these entries, oldest first, and no others. */
  set(entries) {
    if (JSON.stringify(entries.slice(-MOST)) === JSON.stringify(this.#shown)) return;
    this.#shown = entries.slice(-MOST);
    this.#redraw();
  }

  #redraw() {
    this.#list.replaceChildren(...[...this.#shown].reverse().map(this.#line));
    this.#none.hidden = this.#shown.length > 0;
  }
}
