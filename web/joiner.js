// Joining what a cloud sends to the text that is shown already, without repeating or losing a character: the rules of
// pyapp/routing/joiner.py, which says why they are these (tests/unit/test_joiner.py holds both to the same cases).

const LEAST_LETTERS = 3;
const RUN_ON_LETTERS = 5;
const [WORD, LONG_WORD, CHARACTER] = [5, 10, 3];
const ENOUGH = 3 * WORD;
const ENOUGH_FOR_THE_WHOLE = 9;
const MOST_BLANKS = 64;

const BLANKS = "[\\t\\n\\v\\f\\r \\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000]";
const LEADING = new RegExp(`^${BLANKS}+`);
const TRAILING = new RegExp(`${BLANKS}+$`);
const UNSPACED =
  "[\\u0e00-\\u0eff\\u1000-\\u109f\\u1780-\\u17ff\\u2e80-\\u2fdf\\u3005-\\u3007\\u3040-\\u30ff\\u31f0-\\u31ff" +
  "\\u3400-\\u4dbf\\u4e00-\\u9fff\\uf900-\\ufaff\\u{20000}-\\u{3ffff}]";
const SPACED = `(?!${UNSPACED})[\\p{L}\\p{M}\\p{N}]`;
const UNITS = new RegExp(`(?:${SPACED})+|(?!${BLANKS})[^]`, "gu");
const BEGINS_SPACED = new RegExp(`^${SPACED}`, "u");
const ENDS_SPACED = new RegExp(`${SPACED}$`, "u");
const IS_UNSPACED = new RegExp(`^${UNSPACED}$`, "u");

/** Goes on after `shown`. `push` gives what to show of all that has come so far, `flush` the rest at the end. */
export class Joiner {
  /** How many characters (UTF-16) of what came were shown already. */
  repeated = 0;
  #text;
  #tail;
  #held = "";
  #passing;
  #starts = null;

  constructor(shown) {
    this.#text = shown.replace(LEADING, "").replace(TRAILING, "");
    this.#tail = TRAILING.exec(shown)?.[0] ?? "";
    this.#passing = shown === "";
  }

  push(text) {
    if (this.#passing) return text;
    this.#held += text;
    return this.#decide(false);
  }

  flush() {
    return this.#passing ? "" : this.#decide(true);
  }

  #decide(last) {
    const text = this.#text;
    const body = this.#held.replace(LEADING, "");
    if (!body) return last || this.#held.length > MOST_BLANKS ? this.#pass(0) : "";
    const blanks = this.#held.slice(0, this.#held.length - body.length);
    const runsOn = !blanks && !this.#tail && BEGINS_SPACED.test(body);
    this.#starts ??= candidates(text, body[0], runsOn && ENDS_SPACED.test(text));
    this.#starts = this.#starts.filter((at) => text.startsWith(body, at) || body.startsWith(text.slice(at)));
    if (!last && this.#starts.length && body.length < text.length - this.#starts[0]) return "";
    const at = this.#starts.find((start) => body.length >= text.length - start);
    if (at !== undefined) return this.#after(blanks.length + text.length - at, last);
    return this.#continuation(blanks, body);
  }

  #after(repeated, last) {
    const rest = this.#held.slice(repeated);
    const blanks = LEADING.exec(rest)?.[0] ?? "";
    if (this.#tail && blanks === rest && !last && blanks.length <= MOST_BLANKS) return "";
    if (blanks.startsWith(this.#tail)) return this.#pass(repeated + this.#tail.length);
    return this.#pass(this.#tail.startsWith(blanks) ? repeated + blanks.length : repeated);
  }

  #continuation(blanks, body) {
    let common = 0;
    while (common < body.length && body[common] === this.#text[common]) common += 1;
    const words = [...new Set(unitsOf(body.slice(0, common)).slice(0, -1).map(([, unit]) => unit))];
    if (sum(words.map(weightOf)) >= ENOUGH && sum(words.map(lettersOf)) >= LEAST_LETTERS) {
      if (common === body.length) return this.#pass(this.#held.length);
      if (!blanks && !this.#tail) return "\n\n" + this.#pass(0);
    }
    return this.#pass(this.#text && this.#tail === " " && blanks === " " ? 1 : 0);
  }

  #pass(repeated) {
    this.#passing = true;
    this.repeated = repeated;
    return this.#held.slice(repeated);
  }
}

/** Where in `text` a repetition that begins with `first` may have begun, the longest first. */
function candidates(text, first, inside) {
  const seen = new Set();
  let [words, letters, weight] = [0, 0, 0];
  const starts = [];
  for (const [at, unit] of unitsOf(text).reverse()) {
    if (!seen.has(unit)) {
      seen.add(unit);
      words += lettersOf(unit) > 0 ? 1 : 0;
      letters += lettersOf(unit);
      weight += weightOf(unit);
    }
    const enough = inside
      ? at === 0 || words >= 2 || letters >= RUN_ON_LETTERS
      : weight >= (at ? ENOUGH : ENOUGH_FOR_THE_WHOLE);
    if (enough && letters >= LEAST_LETTERS && unit[0] === first) starts.unshift(at);
  }
  return starts;
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);
const unitsOf = (text) => [...text.matchAll(UNITS)].map((match) => [match.index, match[0]]);
const lettersOf = (unit) => (/\p{L}/u.test(unit) ? (unit + unit).indexOf(unit, 1) : 0);

function weightOf(unit) {
  if (!BEGINS_SPACED.test(unit)) return IS_UNSPACED.test(unit) ? CHARACTER : 0;
  return lettersOf(unit) ? Math.max(WORD, Math.min(LONG_WORD, lettersOf(unit))) : CHARACTER;
}
