// The language switch: each language by its own name, the current one marked.

import { h } from "./dom.js";
import { LANGUAGES, language, onLanguage, say, setLanguage } from "./i18n.js";

const NAMES = { en: "English", zh: "中文" };

export function languageSwitch() {
  const buttons = LANGUAGES.map((code) => {
    const button = h("button", { type: "button", lang: code === "zh" ? "zh-Hans" : code, value: code }, NAMES[code]);
    button.addEventListener("click", async () => {
      await setLanguage(code);
      const url = new URL(location.href);
      url.searchParams.set("lang", code);
      history.replaceState(history.state, "", url);
    });
    return button;
  });
  const mark = () => buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.value === language())));
  onLanguage(mark);
  mark();
  return say(h("div.languages", { role: "group" }, ...buttons), "page.language", {}, "aria-label");
}
