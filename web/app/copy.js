// The copy: appears as it is written, can be edited, copied, written again; earlier versions stay at hand.

import { TextRate } from "../text-rate.js";
import { Announcer } from "./announcer.js";
import { h, icon, oncePerFrame } from "./dom.js";
import { decimal } from "./format.js";
import { hush, onLanguage, say, statusInWords, t } from "./i18n.js";

export class Copy {
  #text = h("div.copy-text", { "data-tandem": "copy", role: "textbox", "aria-multiline": "true", tabindex: "0" });
  #note = h("p.hint");
  #status = h("p.hint.event", { hidden: true });
  #count = h("span.count");
  #back = h("button.small.quiet.square", { type: "button", onclick: () => this.#turn(-1) }, icon("back"));
  #forth = h("button.small.quiet.square", { type: "button", onclick: () => this.#turn(1) }, icon("forth"));
  #versions = [];
  #shown = -1;
  #writing = false;
  #announcer = new Announcer();
  #drawText = oncePerFrame(() => this.#paintText()); // of all that is shown here, only the text changes while it comes

  /** `onregenerate()`; `extra` is a button that goes beside Copy (the widget's "use this text"), or null. */
  constructor(onregenerate, extra = null) {
    say(this.#text, "copy.label", {}, "aria-label");
    say(this.#text, "copy.empty", {}, "data-empty");
    say(this.#back, "copy.back", {}, "aria-label");
    say(this.#forth, "copy.forth", {}, "aria-label");
    this.#text.addEventListener("input", () => {
      if (this.#shown >= 0) this.#versions[this.#shown].text = this.text;
    });
    this.#text.addEventListener("paste", (event) => this.#pastePlain(event));
    this.copyButton = h("button.small", { type: "button", onclick: () => this.#copy() }, icon("copy"), say(h("span"), "copy.copy"));
    this.againButton = h("button.small", { type: "button", onclick: onregenerate }, icon("again"), say(h("span"), "copy.again"));
    this.extra = extra;
    this.nav = h("div.versions", { role: "group", hidden: true }, this.#back, this.#count, this.#forth);
    say(this.nav, "copy.versions", {}, "aria-label");
    this.element = h(
      "div.copy-block",
      {},
      this.#text,
      this.#status,
      this.#note,
      h("div.actions", {}, extra, this.copyButton, this.againButton, this.nav),
      this.#announcer.element,
    );
    onLanguage(() => this.#paint());
    this.#paint();
  }

  /** Who wrote the text on show; null where there is none. */
  get source() {
    return this.#versions[this.#shown]?.source ?? null;
  }

  /** The text on show, with the merchant's edits. */
  get text() {
    return this.#text.innerText.replace(/\n$/, "");
  }

  get versions() {
    return this.#versions.length;
  }

  /** A new, empty version. An empty one that failed before its first word is used again. */
  begin() {
    if (this.#versions.at(-1)?.text === "") this.#versions.pop();
    this.#versions.push({ text: "", source: null, usage: null, reason: null, rate: new TextRate() });
    this.#shown = this.#versions.length - 1;
    this.#writing = true;
    this.#announcer.say(t("copy.writing"));
    hush(this.#status);
    this.#paint();
  }

  /** One event of client.generate. */
  event(event) {
    const version = this.#versions.at(-1);
    version.rate.heard(event);
    if (event.type === "text") {
      version.text += event.text;
      version.source = event.source;
      this.#announcer.push(event.text);
      this.#drawText();
    } else if (event.type === "status") {
      say(this.#status, "copy.status", { message: () => statusInWords(event) });
      this.#status.hidden = !this.#status.textContent;
    } else if (event.type === "usage") {
      version.usage = event;
    } else if (event.type === "done") {
      version.reason = event.reason;
      version.source = event.source ?? version.source;
    }
  }

  /** No more events: finished, stopped or failed. */
  end(failed = false) {
    this.#writing = false;
    hush(this.#status); // it tells of what goes on; what became of it is in the badge and the note below the text
    const early = failed || this.#versions.at(-1)?.reason === "abort";
    if (!this.#versions.at(-1)?.text) {
      this.#versions.pop();
      this.#shown = this.#versions.length - 1;
    }
    this.#announcer.finish(t(early ? "copy.failed" : "copy.done"));
    this.#paint();
  }

  #turn(step) {
    this.#shown = Math.min(this.#versions.length - 1, Math.max(0, this.#shown + step));
    this.#paint();
    this.#announcer.say(t("copy.version", { number: this.#shown + 1, count: this.#versions.length }));
  }

  #paintText() {
    const version = this.#versions[this.#shown] ?? { text: "" };
    const node = this.#text.firstChild;
    // Appending keeps a reader's selection where it is; anything else replaces the text.
    if (node?.nodeType === Node.TEXT_NODE && this.#text.childNodes.length === 1 && version.text.startsWith(node.data)) {
      node.appendData(version.text.slice(node.data.length));
    } else if (this.text !== version.text || this.#writing) {
      this.#text.textContent = version.text;
    }
  }

  #paint() {
    const version = this.#versions[this.#shown] ?? { text: "" };
    this.#paintText();
    const editable = !this.#writing && this.#shown >= 0;
    this.#text.setAttribute("contenteditable", editable ? "plaintext-only" : "false");
    if (editable && this.#text.contentEditable !== "plaintext-only") this.#text.setAttribute("contenteditable", "true");
    this.#text.setAttribute("aria-readonly", String(!editable));
    this.#text.setAttribute("aria-busy", String(this.#writing));
    this.#text.classList.toggle("writing", this.#writing);
    this.#note.textContent = this.#writing ? "" : this.#summary(version);
    this.#status.hidden = !this.#status.textContent;
    const idle = !this.#writing && this.#shown >= 0;
    for (const button of [this.copyButton, this.againButton, this.extra]) {
      if (button) button.disabled = !idle;
    }
    this.nav.hidden = this.#versions.length < 2 || this.#writing;
    this.#count.textContent = `${this.#shown + 1} / ${this.#versions.length}`;
    this.#back.disabled = this.#shown <= 0;
    this.#forth.disabled = this.#shown >= this.#versions.length - 1;
  }

  #summary({ usage, source, reason, rate }) {
    const parts = [];
    if (source) parts.push(t(usage?.deviceTokens && usage?.cloudTokens ? "copy.by.both" : `copy.by.${source}`));
    if (usage) parts.push(t("copy.tokens", { count: usage.completionTokens }));
    const speed = usage ? rate.of(usage.completionTokens) : null;
    if (speed !== null) parts.push(t("copy.rate", { rate: decimal(speed) }));
    if (reason === "length") parts.push(t("copy.cut"));
    if (reason === "abort") parts.push(t("copy.stopped"));
    return parts.join(" · ");
  }

  async #copy() {
    const text = this.text;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      // No permission (an iframe without clipboard-write) or no secure context: the old way still works there.
      getSelection().selectAllChildren(this.#text);
      document.execCommand("copy");
      getSelection().removeAllRanges();
    }
    say(this.copyButton.querySelector("span:not(.icon)"), "copy.copied");
    this.#announcer.say(t("copy.copied"));
    setTimeout(() => say(this.copyButton.querySelector("span:not(.icon)"), "copy.copy"), 2000);
  }

  // Where "plaintext-only" is unknown, a paste would bring the other page's styling along.
  #pastePlain(event) {
    if (this.#text.contentEditable === "plaintext-only" || event.clipboardData.files.length) return;
    event.preventDefault();
    document.execCommand("insertText", false, event.clipboardData.getData("text/plain"));
  }
}
