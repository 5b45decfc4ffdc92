// The badge: which side answers, device or cloud, and why. Both are of one text: that on the page, or else the next one.
// Of a text that has ended they are told as what was: by then the models may be loaded, or the GPU gone.

import { hasWebGpu } from "../probe.js";
import { h } from "./dom.js";
import { language, onLanguage, statusInWords, t } from "./i18n.js";

const CLOUD_MODES = ["only_in_cloud", "prefer_in_cloud"];
// Status events about a text that say nothing of why its side writes it.
const ASIDES = ["queued", "context_short"];

// What the engine says while models are loaded for the first time; `loading` is also set while a lost GPU is made ready.
const STILL_LOADING = "its models are still being loaded";
const isLoading = ({ loading, reason }) => loading && Boolean(reason?.includes(STILL_LOADING));

export class Badge {
  #icon = h("span.icon", { "aria-hidden": "true" });
  #side = h("strong");
  #why = h("span.why");
  #status = null;
  // `source` wrote last, for what `change` or else `status` says; `both`: the other one wrote, too. `next` is to write,
  // named by the event `told` in the place of another side.
  #text = { source: null, both: false, change: null, status: null, next: null, told: null, ended: false };
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
    const next = status?.source ?? null;
    this.#text = { source: null, both: false, change: null, status, next, told: null, ended: false };
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
    text.both ||= text.source !== null;
    text.source = text.next = event.source;
    text.change = text.told?.source === event.source ? text.told : null;
    // What was to be expected may have come otherwise, or no longer hold (a lost GPU that is ready again).
    if (status?.source === event.source) text.status = status;
    this.#draw();
  }

  /** No more events: the text is finished, stopped or broken off. */
  end() {
    this.#text.ended = true;
    this.#draw();
  }

  /** The visitor chose the cloud on this page, whatever its options say. */
  choseCloud() {
    this.#chosen = true;
    this.#draw();
  }

  #draw() {
    const { source: wrote, both, change, ended } = this.#text;
    const status = wrote ? this.#text.status : this.#status;
    const source = wrote ?? status?.source ?? "none";
    const own = source === status?.source ? status : null; // a status gives the reasons of its own side alone
    this.element.dataset.source = source;
    this.#icon.className = `icon icon-${source === "device" ? "chip" : source === "cloud" ? "cloud" : "clock"}`;
    const past = Boolean(wrote) && ended;
    const by = past ? `copy.by.${both ? "both" : source}` : `badge.${source === "none" ? this.#state : source}`;
    set(this.#side, t(by));
    const why = past ? this.#then(change, own) : this.#now(change, own);
    const said = (change?.message ?? own?.reason) || "";
    const shown = why.includes(said) || (past && !change && source === "device");
    this.element.title = shown ? "" : past ? t("badge.then", { reason: said }) : said;
    set(this.#why, why && `· ${why}`);
  }

  #now(change, own) {
    return change ? statusInWords(change) : own ? this.#reason(own) : "";
  }

  // The same of a text that has ended: what is no fact for good is told as what was.
  #then(change, own) {
    if (change?.code === "loading") return t("badge.was.loading");
    if (own && !change) {
      const { source, adapter, software } = own;
      const setting = this.#setting(own);
      if (setting) return setting;
      if (source === "cloud" && isLoading(own)) return t("badge.was.loading");
      if (source === "device" && adapter) return t(software ? "badge.was.software" : "badge.was.gpu", { adapter });
    }
    const reason = this.#now(change, own);
    return reason && t("badge.then", { reason });
  }

  // What was asked for is told in the page's words. Else the engine says why, in English and with the figures; in
  // another language the known reasons are told in its words, and the engine's are there to be pointed at.
  #reason(status) {
    const { source, reason, adapter, software } = status;
    const setting = this.#setting(status);
    if (setting) return setting;
    if (language() === "en") return reason ?? "";
    if (isLoading(status)) return t("badge.why.loading");
    if (source === "device") return t(software ? "badge.software" : "badge.gpu", { adapter });
    if (software) return t("badge.why.software", { adapter });
    if (!hasWebGpu()) return t("badge.why.no_webgpu");
    return t(adapter ? "badge.why.other" : "badge.why.no_adapter");
  }

  // What the visitor or the page asked for, as far as the cloud's part comes of it; else null.
  #setting({ source }) {
    if (source !== "cloud") return null;
    if (this.#chosen) return t("badge.why.chosen");
    if (CLOUD_MODES.includes(this.#options.mode)) return t("badge.why.mode");
    return this.#options.adapter === "none" ? t("badge.why.none") : null;
  }
}

// Writing the same words again would make screen readers repeat them.
function set(element, words) {
  if (element.textContent !== words) element.textContent = words;
}
