// The lab: an editor, a PyScript worker that runs what is in it, and its output as it is printed.

import { h, icon } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { ErrorBox } from "./errors.js";
import { chooseLanguage, say, setLanguage, t } from "./i18n.js";
import { ProgressBar } from "./progress.js";
import { languageSwitch } from "./switch.js";

await setLanguage(chooseLanguage(new URLSearchParams(location.search).get("lang")));

const site = new URL("../", import.meta.url);
const errors = new ErrorBox();
const progress = new ProgressBar();
const editor = h("textarea", { id: "code", spellcheck: "false", autocapitalize: "off", "data-tandem": "code" });
const output = h("pre.output", { id: "output", role: "log", tabindex: "0", "aria-labelledby": "output-title", "data-tandem": "output" });
const runButton = h("button.primary", { type: "button", disabled: true, "data-tandem": "run", onclick: () => run() }, icon("forth"), say(h("span"), "lab.run"));
const stopButton = h("button", { type: "button", disabled: true, onclick: () => worker?.stop() }, icon("stop"), say(h("span"), "action.stop"));
const file = h("input", { type: "file", accept: "image/*", id: "lab-photo", onchange: () => givePhoto() });
let worker = null;

const example = (name) =>
  say(h("button.small", { type: "button", "data-example": name, onclick: () => (editor.value = EXAMPLES[name]) }), `lab.example.${name}`);

function build() {
  say(document.querySelector("[data-slot=skip]"), "page.skip");
  say(document.querySelector("[data-slot=tagline]"), "lab.tagline");
  document.querySelector("[data-slot=header]").append(languageSwitch());
  editor.value = EXAMPLES.probe;
  editor.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run();
  });
  document.querySelector("main").replaceChildren(
    say(h("h1"), "lab.title"),
    say(h("p.lead"), "lab.lead"),
    h("div.messages", {}, progress.element, errors.element),
    h(
      "section.card",
      { "aria-labelledby": "code-title" },
      h("div.card-head", {}, say(h("h2", { id: "code-title" }), "lab.code")),
      h("div.actions", {}, ...Object.keys(EXAMPLES).map(example)),
      h("div.field", {}, say(h("label", { for: "code" }), "lab.editor"), editor, say(h("p.hint"), "lab.hint")),
      h("div.field", {}, say(h("label", { for: "lab-photo" }), "lab.photo"), file),
      h("div.actions", {}, runButton, stopButton),
    ),
    h(
      "section.card",
      { "aria-labelledby": "output-title" },
      h("div.card-head", {}, say(h("h2", { id: "output-title" }), "lab.output")),
      output,
    ),
  );
  document.querySelector("footer").replaceChildren(h("p", {}, say(h("a", { href: "./" }), "lab.back")));
}

// PyScript's own element, made here since the wheel's name carries its version.
async function start() {
  progress.show({ stage: "runtime", loaded: 0, total: null });
  const answer = await fetch(new URL("wheels/index.json", site));
  const wheel = new URL(`wheels/${(await answer.json()).tandem}`, site).href;
  const config = {
    interpreter: "./pyodide/pyodide.mjs",
    js_modules: {
      worker: { "./replay.mjs": "tandem_replay", "./opfs.mjs": "tandem_opfs", "./tabs.mjs": "tandem_tabs" },
    },
  };
  const script = h("script", { type: "py", worker: true, name: "lab", src: "./lab.py", config: JSON.stringify(config) });
  const { hooks } = await import(new URL("pyscript/core.js", site).href);
  const made = new Promise((resolve) => hooks.main.onWorker.add((_, xworker) => resolve(xworker)));
  document.body.append(script);
  const xworker = await made;
  await xworker.ready;
  worker = xworker.sync;
  worker.show = (text) => {
    output.append(text);
    output.scrollTop = output.scrollHeight;
  };
  worker.progress = (stage, loaded, total) => progress.show({ stage, loaded, total });
  await worker.prepare(wheel, site.href);
  progress.hide();
  runButton.disabled = false;
  document.body.dataset.ready = "";
}

async function run() {
  if (runButton.disabled) return;
  errors.clear();
  output.textContent = "";
  runButton.disabled = true;
  stopButton.disabled = false;
  try {
    output.dataset.ok = String(await worker.run(editor.value));
  } catch (error) {
    errors.show(error);
  } finally {
    progress.hide();
    runButton.disabled = false;
    stopButton.disabled = true;
  }
}

async function givePhoto() {
  const [photo] = file.files;
  if (photo) await worker?.give_photo(new Uint8Array(await photo.arrayBuffer()));
}

build();
start().catch((error) => {
  progress.hide();
  errors.show(error);
  output.textContent = t("lab.failed");
});
