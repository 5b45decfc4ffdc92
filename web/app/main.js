// The page: header, photo, brief, copy, memory.

import { App } from "./app.js";
import { h, icon } from "./dom.js";
import { chooseLanguage, say, setLanguage } from "./i18n.js";
import { MemoryPanel } from "./memory/panel.js";
import { readParameters } from "./params.js";
import { languageSwitch } from "./switch.js";

const { options, lang } = readParameters(location.search);
await setLanguage(chooseLanguage(lang));

const memory = new MemoryPanel(() => app.session.memory(), () => app.atWork);
const app = new App(options, { status: (status) => memory.decided(status?.decisions ?? []) });
app.pool.element.append(memory.element);

const card = (id, number, ...parts) =>
  h(
    "section.card",
    { "aria-labelledby": id },
    h("div.card-head", {}, h("span.step", { "aria-hidden": "true" }, number), say(h("h2", { id }), `card.${id}`)),
    ...parts,
  );

say(document.querySelector("[data-slot=skip]"), "page.skip");
say(document.querySelector("[data-slot=tagline]"), "page.tagline");
document.querySelector("[data-slot=header]").append(app.badge.element, languageSwitch());
document.querySelector("main").replaceChildren(
  say(h("h1"), "page.title"),
  say(h("p.lead"), "page.lead"),
  h("div.messages", {}, app.notice.element, app.progress.element, app.errors.element),
  h(
    "div.columns",
    {},
    h("div.column", {}, card("photo", "1", app.photo.element, app.labels.element)),
    h("div.column", {}, card("brief", "2", app.brief.element), card("copy", "3", app.copy.element)),
  ),
  app.pool.element,
);
document.querySelector("footer").replaceChildren(
  h("p", {}, icon("lock"), say(h("span"), "page.private")),
  h("p", {}, say(h("a", { href: "lab.html" }), "page.lab")),
);
document.title = "Tandem";
document.body.dataset.ready = "";

app.warmUp();
