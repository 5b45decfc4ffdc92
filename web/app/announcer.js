// A polite live region for text that streams: whole sentences at a calm pace, never token by token.

import { h } from "./dom.js";

const PAUSE_MS = 2500;
const SENTENCE_END = /[.!?…。！？]["'”’)]*\s|\n|[。！？]/g;

export class Announcer {
  #pending = "";
  #last = 0;
  element = h("div.visually-hidden", { "aria-live": "polite", "aria-atomic": "false" });

  /** Text that was written. It is read out once a sentence is complete and the last one had time to be heard. */
  push(text) {
    this.#pending += text;
    if (Date.now() - this.#last < PAUSE_MS) return;
    let end = 0;
    for (const match of this.#pending.matchAll(SENTENCE_END)) end = match.index + match[0].length;
    if (!end) return;
    this.#add(this.#pending.slice(0, end));
    this.#pending = this.#pending.slice(end);
  }

  /** Read out what is left, then `words`. */
  finish(words) {
    if (this.#pending.trim()) this.#add(this.#pending);
    this.#pending = "";
    this.#add(words);
  }

  /** Say one thing now, forgetting what was said before. */
  say(words) {
    this.element.replaceChildren();
    this.#pending = "";
    this.#add(words);
  }

  #add(words) {
    this.element.append(h("p", {}, words.trim()));
    this.#last = Date.now();
  }
}
