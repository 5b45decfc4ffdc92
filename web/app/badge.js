// The badge: which side answers, device or cloud, and why.

import { hasWebGpu } from "../probe.js";
import { h } from "./dom.js";
import { language, onLanguage, t } from "./i18n.js";

const CLOUD_MODES = ["only_in_cloud", "prefer_in_cloud"];

export class Badge {
  #icon = h("span.icon", { "aria-hidden": "true" });
  #side = h("strong");
  #why = h("span.why");
  #status = null;
  #written = null;
  #state = "idle";
  #chosen = false;
  #options;

  /** `options` as for createClient: what the visitor asked for is a reason too. */
  constructor(options) {
    this.#options = options;
    this.element = h(
      "div.badge",
      { "data-tandem": "badge", "data-source": "none", role: "status" },
      this.#icon,
      h("span.words", {}, this.#side, " ", this.#why),
    );
    onLanguage(() => this.#draw());
  }

  /** The client's status (or null) and the session's state. */
  show(status, state) {
    this.#status = status;
    this.#state = state;
    this.#draw();
  }

  /** The side that is writing, or wrote, the text on the page; null when there is none. */
  wrote(source) {
    this.#written = source;
    this.#draw();
  }

  /** The visitor chose the cloud on this page, whatever its options say. */
  choseCloud() {
    this.#chosen = true;
    this.#draw();
  }

  #draw() {
    const source = this.#written ?? this.#status?.source ?? "none";
    this.element.dataset.source = source;
    this.#icon.className = `icon icon-${source === "device" ? "chip" : source === "cloud" ? "cloud" : "clock"}`;
    const title = source === "none" ? `badge.${this.#state}` : `badge.${source}`;
    set(this.#side, t(title));
    const why = this.#status ? this.#reason(source) : "";
    const said = this.#status?.reason ?? "";
    this.element.title = said === why ? "" : said;
    set(this.#why, why && `· ${why}`);
  }

  // What was asked for is told in the page's words. Else the engine says why, in English and with the figures; in
  // another language the known reasons are told in its words, and the engine's are there to be pointed at.
  #reason(source) {
    const { reason, adapter, software } = this.#status;
    if (source === "cloud") {
      if (this.#chosen) return t("badge.why.chosen");
      if (CLOUD_MODES.includes(this.#options.mode)) return t("badge.why.mode");
      if (this.#options.adapter === "none") return t("badge.why.none");
    }
    if (language() === "en") return reason ?? "";
    if (source === "device") return t(software ? "badge.software" : "badge.gpu", { adapter });
    if (this.#status.loading) return t("badge.why.loading");
    if (software) return t("badge.why.software", { adapter });
    if (!hasWebGpu()) return t("badge.why.no_webgpu");
    return t(adapter ? "badge.why.other" : "badge.why.no_adapter");
  }
}

// Writing the same words again would make screen readers repeat them.
function set(element, words) {
  if (element.textContent !== words) element.textContent = words;
}
