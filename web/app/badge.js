// The badge: which side answers, device or cloud, and why. Both are of one text: that on the page, or else the next one.

import { hasWebGpu } from "../probe.js";
import { h } from "./dom.js";
import { language, onLanguage, statusInWords, t } from "./i18n.js";

const CLOUD_MODES = ["only_in_cloud", "prefer_in_cloud"];

export class Badge {
  #icon = h("span.icon", { "aria-hidden": "true" });
  #side = h("strong");
  #why = h("span.why");
  #status = null;
  #text = { source: null, status: null, told: {} };
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

  /** A text begins, of which the client's status says who is to write it. */
  begin(status) {
    this.#text = { source: null, status, told: {} };
    this.#draw();
  }

  /** One event of client.generate. */
  event(event) {
    if (event.type === "status") this.#text.told[event.source] = event;
    if (event.type !== "text") return;
    this.#text.source = event.source;
    this.#draw();
  }

  /** The visitor chose the cloud on this page, whatever its options say. */
  choseCloud() {
    this.#chosen = true;
    this.#draw();
  }

  #draw() {
    const { source: wrote, told } = this.#text;
    const status = wrote ? this.#text.status : this.#status;
    const source = wrote ?? status?.source ?? "none";
    // A text that another side wrote than was to be expected was told why.
    const change = wrote === status?.source ? null : told[wrote];
    this.element.dataset.source = source;
    this.#icon.className = `icon icon-${source === "device" ? "chip" : source === "cloud" ? "cloud" : "clock"}`;
    const title = source === "none" ? `badge.${this.#state}` : `badge.${source}`;
    set(this.#side, t(title));
    const why = change ? statusInWords(change) : source === status?.source ? this.#reason(status) : "";
    const said = change?.message ?? status?.reason ?? "";
    this.element.title = said === why ? "" : said;
    set(this.#why, why && `· ${why}`);
  }

  // What was asked for is told in the page's words. Else the engine says why, in English and with the figures; in
  // another language the known reasons are told in its words, and the engine's are there to be pointed at.
  #reason({ source, reason, adapter, software, loading }) {
    if (source === "cloud") {
      if (this.#chosen) return t("badge.why.chosen");
      if (CLOUD_MODES.includes(this.#options.mode)) return t("badge.why.mode");
      if (this.#options.adapter === "none") return t("badge.why.none");
    }
    if (language() === "en") return reason ?? "";
    if (source === "device") return t(software ? "badge.software" : "badge.gpu", { adapter });
    if (loading) return t("badge.why.loading");
    if (software) return t("badge.why.software", { adapter });
    if (!hasWebGpu()) return t("badge.why.no_webgpu");
    return t(adapter ? "badge.why.other" : "badge.why.no_adapter");
  }
}

// Writing the same words again would make screen readers repeat them.
function set(element, words) {
  if (element.textContent !== words) element.textContent = words;
}
