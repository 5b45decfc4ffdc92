// What is sent to the model, where Python cannot say it: the same messages as pyapp/text/prompts.py and brief.py, which
// are the ones to change first (tests/unit/test_prompt_mirror.py compares the two). Loaded only when needed.

import { TandemError } from "./tandem-error.js";

const ROLES = ["system", "user", "assistant"];
const LENGTHS = { short: 2, medium: 3, long: 4 };
const LANGUAGES = "ar da de en es fi fr hi it ja ko nl no pl pt ru sv tr uk vi zh".split(" ");
const SYSTEM = "You write product copy for an online shop.";
const EXAMPLES = {
  friendly: [
    "Carry less and smile more with a slim leather wallet that slips into any pocket.",
    "It makes a thoughtful gift for anyone who likes to travel light.",
    "Simple, handy and made for every day, it soon becomes the thing you would not want to be without.",
    "Treat yourself, or put a smile on the face of a friend.",
  ],
  professional: [
    "This slim leather wallet keeps cards and notes in order throughout the working day.",
    "Its clean lines make it a fitting gift for a colleague or a client.",
    "Designed for reliable daily use, it combines practical value with a discreet appearance.",
    "A sound choice for anyone who expects quality.",
  ],
  playful: [
    "Say goodbye to the brick in your pocket and hello to a slim leather wallet!",
    "As a gift, it gets big grins and zero returns.",
    "Bring it home and watch your ordinary Monday turn into something a little more fun.",
    "Go on, you know you want it!",
  ],
  luxurious: [
    "Discover the quiet elegance of a slim leather wallet, made to be held as much as used.",
    "It is a refined gift for those who appreciate fine things.",
    "Every line and every detail speaks of patience, care and a love of beauty.",
    "An indulgence to enjoy for years to come.",
  ],
  plain: [
    "A slim leather wallet for cards and notes.",
    "It is easy to carry and works well as a gift.",
    "It does its job without fuss and is suited to daily use.",
    "A good choice at any time of the year.",
  ],
};
const SECOND_LABEL = 0.6;

const bad = (message) => new TandemError("bad_argument", message);
const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
const absent = (value) => value === undefined || value === null;

/** The messages of a request. Throws bad_argument. */
export function buildMessages({ prompt, messages, facts, brief }) {
  const names = labelNames(facts);
  const wish = parseBrief(brief);
  const notes = isObject(brief) && Object.keys(brief).length ? wish : null;
  if (!absent(prompt) && !absent(messages)) throw bad("Give either prompt or messages, and not both.");
  if (!absent(prompt)) {
    if (typeof prompt !== "string" || !prompt.trim()) throw bad("prompt must be a text that is not empty.");
    return withNotes([{ role: "user", content: prompt }], names, notes);
  }
  if (!absent(messages)) return withNotes(checkedMessages(messages), names, notes);
  if (!names.length && !wish.keywords.length) {
    throw bad("There is nothing to write about: give prompt, messages, facts, or a brief with keywords.");
  }
  return productCopy(names, wish);
}

/** maxTokens, temperature, topP and seed of a request. Throws bad_argument for one out of range. */
export function checkSampling(request) {
  const known = ["prompt", "messages", "facts", "brief", "maxTokens", "temperature", "topK", "topP", "seed"];
  const strange = Object.keys(request).filter((name) => !known.includes(name));
  if (strange.length) throw bad(`generate does not know ${strange.join(", ")}; it takes ${known.join(", ")}.`);
  const number = (name, standard, low, high, fits = Number.isInteger, words = "a whole number") => {
    const value = request[name] === undefined ? standard : request[name];
    if (!Number.isFinite(value) || value < low || value > high || !fits(value)) {
      throw bad(`${name} is ${String(value)}: give ${words} from ${low} to ${high}.`);
    }
    return value;
  };
  number("topK", 0, 0, 2 ** 31 - 1);
  return {
    maxTokens: number("maxTokens", 256, 1, 2 ** 31 - 1),
    temperature: number("temperature", 0, 0, 2, () => true, "a number"),
    topP: number("topP", 1, 0, 1, (p) => p > 0, "a number above 0,"),
    seed: number("seed", 0, 0, 2 ** 32 - 1),
  };
}

function productCopy(names, brief) {
  const product = names.length ? names.join(" or ") : brief.keywords[0];
  const keywords = names.length ? brief.keywords : brief.keywords.slice(1);
  const system = { role: "system", content: SYSTEM };
  const asked = { role: "user", content: requestLine(product, keywords, brief) };
  if (brief.language !== "en") return [system, asked];
  const example = Object.hasOwn(EXAMPLES, brief.tone) ? EXAMPLES[brief.tone] : EXAMPLES.friendly;
  const shown = { role: "user", content: requestLine("leather wallet", ["slim", "gift"], brief) };
  return [system, shown, { role: "assistant", content: example.slice(0, LENGTHS[brief.length]).join(" ") }, asked];
}

function requestLine(product, keywords, brief) {
  const parts = [`Product: ${product}.`];
  if (keywords.length) parts.push(`Keywords: ${keywords.join(", ")}.`);
  parts.push(`Tone: ${brief.tone}.`, `Length: ${LENGTHS[brief.length]} sentences.`);
  if (brief.language !== "en") parts.push(`Write the product description in ${languageName(brief.language)}.`);
  return parts.join(" ");
}

function withNotes(messages, names, brief) {
  const notes = names.length ? [`The product photo shows: ${names.join(" or ")}.`] : [];
  if (brief) {
    const wishes = brief.keywords.length ? [`Keywords: ${brief.keywords.join(", ")}.`] : [];
    wishes.push(`Tone: ${brief.tone}.`, `Length: ${LENGTHS[brief.length]} sentences.`);
    if (brief.language !== "en") wishes.push(`Language: ${languageName(brief.language)}.`);
    notes.push(wishes.join(" "));
  }
  if (!notes.length) return messages;
  const last = messages.map(({ role }) => role).lastIndexOf("user");
  if (last < 0) throw bad("facts and brief are added to the last user message, but messages has none: add one.");
  messages[last] = { role: "user", content: [messages[last].content, ...notes].join("\n\n") };
  return messages;
}

function checkedMessages(messages) {
  if (!Array.isArray(messages) || !messages.length) {
    throw bad("messages must be a list with at least one message, each with role and content.");
  }
  const checked = messages.map((message, index) => {
    if (!isObject(message)) throw bad(`messages[${index}] must be an object with role and content.`);
    const { role, content } = message;
    if (!ROLES.includes(role)) throw bad(`messages[${index}].role must be one of ${ROLES.join(", ")}.`);
    if (typeof content !== "string") throw bad(`messages[${index}].content must be text.`);
    return { role, content };
  });
  if (!checked.some(({ role, content }) => role !== "system" && content.trim())) {
    throw bad("messages hold no text to answer: give at least one user message that is not empty.");
  }
  return checked;
}

function labelNames(facts) {
  if (absent(facts)) return [];
  if (!Array.isArray(facts.labels)) {
    throw bad("facts must be an object with labels, a list of {index, name, p}, as describe() returns it.");
  }
  const found = [];
  facts.labels.forEach((label, index) => {
    const p = label?.p ?? 0;
    if (typeof label?.name !== "string" || !Number.isFinite(p)) {
      throw bad(`facts.labels[${index}] must have name, a text, and p, a number from 0 to 1.`);
    }
    const name = [...clean(label.name)].slice(0, 80).join("");
    if (name) found.push({ name, p });
  });
  found.sort((a, b) => b.p - a.p);
  return found.slice(0, 2).filter(({ p }) => p >= SECOND_LABEL * found[0].p).map(({ name }) => name);
}

function parseBrief(brief) {
  if (absent(brief)) return { tone: "friendly", language: "en", length: "medium", keywords: [] };
  if (!isObject(brief)) {
    throw bad("brief must be an object with tone, language, length and keywords, each of them optional.");
  }
  const strange = Object.keys(brief).find((name) => !["tone", "language", "length", "keywords"].includes(name));
  if (strange !== undefined) throw bad(`brief has no field '${strange}'; it has tone, language, length and keywords.`);
  const text = (name, standard) => {
    const value = brief[name];
    if (absent(value) || value === "") return standard;
    if (typeof value !== "string") throw bad(`brief.${name} must be text, not ${typeof value}.`);
    return value;
  };
  const tone = clean(text("tone", "friendly")).toLowerCase();
  if (!tone || [...tone].length > 40) throw bad("brief.tone must be a tone in at most 40 characters.");
  const language = languageCode(text("language", "en").trim().toLowerCase());
  const length = text("length", "medium").trim().toLowerCase();
  if (!Object.hasOwn(LENGTHS, length)) throw bad(`brief.length is '${length}': give short, medium, long.`);
  return { tone, language, length, keywords: parseKeywords(brief.keywords) };
}

function parseKeywords(given) {
  if (absent(given)) return [];
  const words = typeof given === "string" ? given.split(/[,;\n\r，、；]/) : given;
  if (!Array.isArray(words)) throw bad("brief.keywords must be a text with commas or a list of texts.");
  if (words.some((word) => typeof word !== "string")) throw bad("brief.keywords must be text, each of them.");
  const keywords = [...new Set(words.map(clean).filter(Boolean))];
  if (keywords.length > 20) throw bad(`brief.keywords holds ${keywords.length} keywords: give at most 20.`);
  if (keywords.some((word) => [...word].length > 80)) throw bad("A keyword in brief.keywords is over 80 characters.");
  return keywords;
}

function languageName(code) {
  return new Intl.DisplayNames(["en"], { type: "language" }).of(code);
}

function languageCode(given) {
  const code = given.split(/[-_]/)[0];
  const found = LANGUAGES.find((known) => known === code) ?? LANGUAGES.find((k) => languageName(k).toLowerCase() === given);
  if (!found) throw bad(`brief.language is '${given}': give one of ${LANGUAGES.join(", ")}.`);
  return found;
}

/** One line of plain text without anything that could become a control token. */
function clean(text) {
  return text
    .replace(/<[^<>]{0,100}>/gu, " ")
    .replace(/[<>|｜\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+/gu, " ")
    .trim()
    .split(/\s+/)
    .filter(Boolean)
    .join(" ");
}
