// The merchant's brief: tone, language, length, and keywords of their own.

import { h } from "./dom.js";
import { languageName } from "./format.js";
import { hush, onLanguage, say, t } from "./i18n.js";

export const TONES = ["friendly", "professional", "playful", "luxurious", "plain"];
export const LENGTHS = { short: 96, medium: 192, long: 320 };
const OFFERED = ["en", "zh", "es", "fr", "de", "it", "pt", "ja", "ko", "ar"];

export class Brief {
  #tone = h("select", { id: "brief-tone", name: "tone" });
  #language = h("select", { id: "brief-language", name: "language", "aria-describedby": "brief-language-why" });
  #why = h("p.hint", { id: "brief-language-why" });
  #length;
  #keywords = h("input", {
    id: "brief-keywords",
    name: "keywords",
    type: "text",
    maxlength: "300",
    autocomplete: "off",
    "aria-describedby": "brief-keywords-hint",
  });
  #model = null;

  /** `onsubmit()` is called by the write button and by Enter. `buttons` go below the fields. */
  constructor(onsubmit, buttons) {
    this.#tone.append(...TONES.map((tone) => say(h("option", { value: tone }), `tone.${tone}`)));
    this.#length = h(
      "fieldset.segmented",
      {},
      say(h("legend"), "brief.length"),
      ...Object.keys(LENGTHS).map((length) =>
        h(
          "label",
          {},
          h("input", { type: "radio", name: "length", value: length, checked: length === "medium" }),
          say(h("span"), `length.${length}`),
        ),
      ),
    );
    say(this.#keywords, "brief.keywords.example", {}, "placeholder");
    const field = (control, key, ...more) => h("div.field", {}, say(h("label", { for: control.id }), key), control, ...more);
    const hint = say(h("p.hint", { id: "brief-keywords-hint" }), "brief.keywords.hint");
    this.element = h(
      "form.brief",
      {
        onsubmit: (event) => {
          event.preventDefault();
          onsubmit();
        },
      },
      h("div.pair", {}, field(this.#tone, "brief.tone"), field(this.#language, "brief.language")),
      this.#why,
      this.#length,
      field(this.#keywords, "brief.keywords", hint),
      buttons,
    );
    onLanguage(() => this.#drawLanguages());
    this.offer(null);
  }

  /** Offer the languages of a language model's catalogue entry; without one (a file by its address) offer them all. */
  offer(model) {
    this.#model = model;
    this.#drawLanguages();
  }

  /** { brief, maxTokens } for client.generate. */
  read() {
    const length = new FormData(this.element).get("length");
    const keywords = this.#keywords.value.split(/[,;，、；\n]/).map((word) => word.trim()).filter(Boolean);
    const brief = { tone: this.#tone.value, language: this.#language.value, length, keywords };
    return { brief, maxTokens: LENGTHS[length] };
  }

  #drawLanguages() {
    const listed = this.#model?.languages ?? null;
    const chosen = this.#language.value;
    const codes = [...new Set([...(listed ?? []), ...OFFERED])];
    this.#language.replaceChildren(
      ...codes.map((code) => {
        const allowed = !listed || listed.includes(code);
        const name = languageName(code);
        const words = allowed ? name : t("brief.language.off", { name, model: this.#model.title });
        return h("option", { value: code, disabled: !allowed }, words);
      }),
    );
    const allowed = codes.filter((code) => !listed || listed.includes(code));
    this.#language.value = allowed.includes(chosen) ? chosen : (allowed[0] ?? "en");
    if (listed && allowed.length < codes.length) {
      const languages = () => allowed.map(languageName).join(", ");
      say(this.#why, "brief.language.why", { model: this.#model.title, languages });
    } else if (!listed) {
      say(this.#why, "brief.language.unlisted");
    } else {
      hush(this.#why);
    }
    this.#why.hidden = !this.#why.textContent;
  }
}
