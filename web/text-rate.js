// Tokens a second of one text, as a page sees them come.

/** Hears of a text's events as they come. The first text is the start: how long it took is another figure. */
export class TextRate {
  /** When the first and the last text came, by performance.now(); null before them. */
  first = null;
  last = null;
  #firstTokens = 0;

  heard(event) {
    if (event.type !== "text") return;
    this.last = performance.now();
    if (this.first !== null) return;
    this.first = this.last;
    this.#firstTokens = event.tokens;
  }

  /** Of a text of so many tokens in all; null where all of it came at one moment, or nothing did. */
  of(tokens) {
    const after = tokens - this.#firstTokens;
    return this.last > this.first && after > 0 ? (1000 * after) / (this.last - this.first) : null;
  }
}
