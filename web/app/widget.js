// The widget inside <tandem-copywriter>'s iframe: the page's parts in one column, and the way back to the shop's page.

import { App } from "./app.js";
import { h, icon } from "./dom.js";
import { chooseLanguage, say, setLanguage } from "./i18n.js";
import { readParameters } from "./params.js";
import { parentOrigin, postTo } from "./parent.js";

const { options, lang } = readParameters(location.search);
await setLanguage(chooseLanguage(lang));

const parent = parentOrigin();
if (options.site && parent) options.ancestor = parent;
const post = postTo(parent);
const use = h("button.primary.small", { type: "button", "data-tandem": "use" }, icon("check"), say(h("span"), "widget.use"));
const app = new App(options, {
  extra: use,
  done: (result) => post("result", { ...result, accepted: false }),
  failed: (error) => post("error", error),
});
use.addEventListener("click", () => post("result", { ...app.result(), accepted: true }));

const panel = h(
  "div.panel",
  {},
  h("div.panel-head", {}, say(h("h2"), "page.title"), app.badge.element),
  h("div.messages", {}, app.notice.element, app.progress.element, app.errors.element),
  app.photo.element,
  app.labels.element,
  app.brief.element,
  app.copy.element,
  h("p.hint.private", {}, icon("lock"), say(h("span"), "page.private")),
);
document.querySelector("main").replaceChildren(panel);
document.body.dataset.ready = "";

// Nothing is downloaded on somebody else's page before the visitor does something: the first photo or "write" starts it.
new ResizeObserver(() => post("height", panel.getBoundingClientRect().height)).observe(panel);
