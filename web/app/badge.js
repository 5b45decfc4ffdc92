// The badge: which side answers, device or cloud, and why. Both are of one text: that on the page, or else the next one.

import { hasWebGpu } from "../probe.js";
import { h } from "./dom.js";
import { language, onLanguage, statusInWords, t } from "./i18n.js";

const CLOUD_MODES = ["only_in_cloud", "prefer_in_cloud"];
// Status events about a text that say nothing of why its side writes it.
const ASIDES = ["queued", "context_short"];

export class Badge {
  #icon = h("span.icon", { "aria-hidden": "true" });
  #side = h("strong");
  #why = h("span.why");
  #status = null;
  // `source` wrote last, for what `change` or else `status` says; `next` is to write, named by the event `told` in the
  // place of another side.
  #text = { source: null, change: null, status: null, next: null, told: null };
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
    this.#text = { source: null, change: null, status, next: status?.source ?? null, told: null };
    this.#draw();
  }

  /** One event of client.generate, and the client's status as it is by then. */
  event(event, status) {
    const text = this.#text;
    if (event.type === "status" && event.source !== text.next) {
      text.next = event.source;
      text.told = ASIDES.includes(event.code) ? null : event;
    }
    if (event.type !== "text" || event.source === text.source) return;
    text.source = text.next = event.source;
    text.change = text.told?.source === event.source ? text.told : null;
    // What was to be expected may have come otherwise, or no longer hold (a lost GPU that is ready again).
    if (status?.source === event.source) text.status = status;
    this.#draw();
  }

  /** The visitor chose the cloud on this page, whatever its options say. */
  choseCloud() {
    this.#chosen = true;
    this.#draw();
  }

  #draw() {
    const { source: wrote, change } = this.#text;
    const status = wrote ? this.#text.status : this.#status;
    const source = wrote ?? status?.source ?? "none";
    const own = source === status?.source ? status : null; // a status gives the reasons of its own side alone
    this.element.dataset.source = source;
    this.#icon.className = `icon icon-${source === "device" ? "chip" : source === "cloud" ? "cloud" : "clock"}`;
    const title = source === "none" ? `badge.${this.#state}` : `badge.${source}`;
    set(this.#side, t(title));
    const why = change ? statusInWords(change) : own ? this.#reason(own) : "";
    const said = (change?.message ?? own?.reason) || "";
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
    if (loading) return t("badge.why.loading");
    if (source === "device") return t(software ? "badge.software" : "badge.gpu", { adapter });
    if (software) return t("badge.why.software", { adapter });
    if (!hasWebGpu()) return t("badge.why.no_webgpu");
    return t(adapter ? "badge.why.other" : "badge.why.no_adapter");
  }
}

// Writing the same words again would make screen readers repeat them.
function set(element, words) {
  if (element.textContent !== words) element.textContent = words;
}
