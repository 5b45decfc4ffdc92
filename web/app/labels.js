// What the vision model found: names with their probabilities as bars.

import { h } from "./dom.js";
import { percent } from "./format.js";
import { hush, onLanguage, say, t } from "./i18n.js";

export class Labels {
  #list = h("ol.labels", { "data-tandem": "labels" });
  #skeleton = h("div.skeleton", { "aria-hidden": "true", hidden: true }, h("span"), h("span"), h("span"));
  #note = h("p.hint", { role: "status" });
  #found = null;

  constructor() {
    say(this.#list, "labels.title", {}, "aria-label");
    this.element = h("div.labels-block", { hidden: true }, this.#list, this.#skeleton, this.#note);
    onLanguage(() => this.#found && this.#draw());
  }

  /** The picture is being read. */
  wait() {
    this.#found = null;
    this.element.hidden = false;
    this.element.setAttribute("aria-busy", "true");
    this.#list.replaceChildren();
    this.#skeleton.hidden = false;
    say(this.#note, "labels.waiting");
  }

  /** client.describe's answer: { labels, source, width, height }. */
  show(found) {
    this.#found = found;
    this.#skeleton.hidden = true;
    this.element.hidden = false;
    this.element.removeAttribute("aria-busy");
    this.#draw();
  }

  clear() {
    this.#found = null;
    this.element.hidden = true;
    this.element.removeAttribute("aria-busy");
    this.#list.replaceChildren();
    hush(this.#note);
  }

  #draw() {
    const { labels, source, width, height } = this.#found;
    const rows = labels.map(({ index, name, p }) => {
      const fill = h("span.fill");
      fill.style.width = `${Math.max(0.5, 100 * p)}%`;
      return h(
        "li",
        { "data-index": index, "data-p": p },
        // ImageNet names are lists of synonyms: the first one is enough to read, the rest is in the tooltip.
        h("span.name", { title: name, lang: "en" }, name.split(",")[0]),
        " ",
        h("span.p", {}, percent(p)),
        h("span.bar", { "aria-hidden": "true" }, fill),
      );
    });
    this.#list.replaceChildren(...rows);
    const where = () => t(source === "device" ? "labels.device" : "labels.cpu");
    say(this.#note, "labels.found", { where, width, height });
  }
}
