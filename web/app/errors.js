// The error box: one clear sentence, its code, and a way to try again. Photo, brief and text stay where they are.

import { h, icon } from "./dom.js";
import { hush, inWords, onLanguage, say } from "./i18n.js";

export class ErrorBox {
  #sentence = h("p.sentence");
  #original = h("p.original", { lang: "en", hidden: true });
  #code = h("code.code");
  #retry = h("button.small", { type: "button", hidden: true, onclick: () => this.#again() });
  #dismiss = h("button.small.quiet", { type: "button", onclick: () => this.clear() });
  #current = null;

  constructor() {
    say(this.#retry, "error.retry");
    say(this.#dismiss, "error.dismiss");
    this.element = h(
      "div.notice.error",
      { "data-tandem": "error", role: "alert", hidden: true },
      icon("alert"),
      h("div.grow", {}, this.#sentence, this.#original, this.#code),
      h("div.actions", {}, this.#retry, this.#dismiss),
    );
    onLanguage(() => this.#draw());
  }

  /** Show a TandemError (or any other error); `retry` is called by its button. */
  show(error, retry = null) {
    const message = String(error?.message ?? error);
    this.#current = { code: error?.code ?? "unexpected", message, retry };
    this.#draw();
  }

  /** Show a sentence of the page's own, by its key. */
  say(key, code, retry = null) {
    this.#current = { code, key, retry };
    this.#draw();
  }

  clear() {
    this.#current = null;
    this.#draw();
  }

  get code() {
    return this.#current?.code ?? null;
  }

  #again() {
    const { retry } = this.#current ?? {};
    this.clear();
    retry?.();
  }

  #draw() {
    const { code, key, message, retry } = this.#current ?? {};
    this.element.hidden = !this.#current;
    this.element.dataset.code = code ?? "";
    this.#retry.hidden = !retry;
    hush(this.#sentence);
    this.#original.hidden = true;
    if (!this.#current) return;
    this.#code.textContent = code;
    if (key) {
      say(this.#sentence, key);
    } else {
      const { summary, original } = inWords(code, message);
      this.#sentence.textContent = summary;
      this.#original.textContent = original ?? "";
      this.#original.hidden = !original;
    }
  }
}
