// One bar for all long work (runtime, weights, shaders): the stage by name, the bytes, and how far.

import { h, oncePerFrame } from "./dom.js";
import { megabytes } from "./format.js";
import { has, onLanguage, say, t } from "./i18n.js";

// Stages without bytes (shaders) count steps; nothing that is downloaded is as small as this.
const STEPS = 4096;

export class ProgressBar {
  #stage = h("span.stage");
  #bytes = h("span.bytes");
  #bar = h("progress", { max: "1" });
  #spoken = h("p.visually-hidden", { role: "status" });
  #last = null;
  #draw = oncePerFrame(() => this.#paint());

  constructor() {
    say(this.#bar, "progress.label", {}, "aria-label");
    const line = h("div.line", { "aria-hidden": "true" }, this.#stage, this.#bytes);
    this.box = h("div.progress", { "data-tandem": "progress", hidden: true }, line, this.#bar);
    // The spoken line stays in the document: a live region that appears together with its text is not read out.
    this.element = h("div.progress-place", {}, this.box, this.#spoken);
    onLanguage(() => this.#paint());
  }

  /** Draw an onProgress event: { stage, loaded, total | null }, bytes. */
  show(event) {
    this.#last = event;
    this.#draw();
  }

  hide() {
    this.#last = null;
    this.#draw();
  }

  #paint() {
    this.box.hidden = !this.#last;
    if (!this.#last) {
      this.#spoken.textContent = "";
      return;
    }
    const { stage, loaded, total } = this.#last;
    const key = `stage.${stage}`;
    const name = has(key) ? t(key) : String(stage);
    this.box.dataset.stage = stage;
    this.#stage.textContent = name;
    if (total) {
      this.#bar.value = Math.min(1, loaded / total);
      const count = total < STEPS ? String : megabytes;
      this.#bytes.textContent = t("progress.of", { loaded: count(loaded), total: count(total) });
    } else {
      this.#bar.removeAttribute("value");
      this.#bytes.textContent = loaded >= STEPS ? megabytes(loaded) : "";
    }
    // Said once a stage, not once a chunk.
    if (this.#spoken.textContent !== name) this.#spoken.textContent = name;
  }
}
