// The interface's words: i18n/en.json and i18n/zh.json, looked up by key, re-applied in place when the language changes.

export const LANGUAGES = ["en", "zh"];

const tables = new Map();
const bindings = new WeakMap();
const listeners = new Set();
let current = "en";

/** The interface language: `?lang=` when it is one of ours, else the browser's first preference that is, else English. */
export function chooseLanguage(asked, preferred = navigator.languages ?? [navigator.language]) {
  for (const tag of [asked, ...preferred]) {
    const code = String(tag ?? "").toLowerCase().split("-")[0];
    if (LANGUAGES.includes(code)) return code;
  }
  return "en";
}

async function table(code) {
  if (!tables.has(code)) {
    const answer = await fetch(new URL(`../i18n/${code}.json`, import.meta.url));
    if (!answer.ok) throw new Error(`i18n/${code}.json: HTTP ${answer.status}`);
    tables.set(code, await answer.json());
  }
  return tables.get(code);
}

/** Load a language and redraw everything that was said with `say`. */
export async function setLanguage(code) {
  await table(code);
  current = code;
  document.documentElement.lang = code === "zh" ? "zh-Hans" : "en";
  for (const element of document.querySelectorAll("[data-i18n]")) apply(element);
  for (const listener of listeners) listener(code);
}

export const language = () => current;

/** Call `listener(code)` at each change of language, for what is drawn from data. */
export function onLanguage(listener) {
  listeners.add(listener);
}

/** Is there a sentence under this key? */
export const has = (key) => key in (tables.get(current) ?? {});

/** The sentence under `key`, its {name} places filled from `values`. A key that is missing shows itself. */
export function t(key, values = {}) {
  const sentence = tables.get(current)?.[key] ?? key;
  return sentence.replace(/\{(\w+)\}/g, (place, name) => (name in values ? String(resolve(values[name])) : place));
}

/**
 * What an error or a status event says. The engine's own sentences carry the figures and are in English; in another
 * language `summary` translates the code and `original` keeps the engine's words, else `original` is null.
 */
export function inWords(code, message) {
  const key = `error.${code}`;
  if (current === "en" || !has(key)) return { summary: message, original: null };
  return { summary: t(key), original: message };
}

/** A status event of a text in the page's language: what is told of its code, or which side goes on. */
export function statusInWords({ code, message, source }) {
  if (current === "en") return message;
  if (has(`event.${code}`)) return t(`event.${code}`);
  if (code === "cloud_unavailable") return t("event.to_device");
  return t(source === "cloud" ? "event.to_cloud" : "event.wait");
}

// A value may be a function, so that figures and names follow the language too.
const resolve = (value) => (typeof value === "function" ? value() : value);

function apply(element) {
  for (const [attribute, [key, values]] of bindings.get(element) ?? []) {
    if (attribute === "text") element.textContent = t(key, values);
    else element.setAttribute(attribute, t(key, values));
  }
}

/** Put a sentence on an element, as its text or as an attribute, in every language from now on. Returns the element. */
export function say(element, key, values = {}, attribute = "text") {
  if (!bindings.has(element)) bindings.set(element, new Map());
  bindings.get(element).set(attribute, [key, values]);
  element.dataset.i18n = "";
  if (attribute === "text") element.textContent = t(key, values);
  else element.setAttribute(attribute, t(key, values));
  return element;
}

/** Take a sentence off again. */
export function hush(element, attribute = "text") {
  bindings.get(element)?.delete(attribute);
  if (attribute === "text") element.textContent = "";
  else element.removeAttribute(attribute);
}
