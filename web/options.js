// createClient's options, checked before a worker is started for them: by the rules of pyapp/door/options.py, which also
// knows what models the site has (tests/unit/test_tandem_js.py compares the two).

import { TandemError } from "./tandem-error.js";

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]*$/;
const isName = (value) => typeof value === "string" && NAME.test(value);
const isModelFile = (value) => typeof value === "string" && /^[^?#]*\.gguf([?#].*)?$/is.test(value);
const oneOf = (...names) => [(value) => names.includes(value), `one of ${names.join(", ")}`];

const isWhole = (value, low, high) => Number.isInteger(value) && value >= low && value <= high;
const whole = (low, high, of = "") => [
  (value) => isWhole(value, low, high),
  `a whole number${of} from ${low} to ${high}`,
];
const number = (low, high, of = "") => [
  (value) => typeof value === "number" && value >= low && value <= high,
  `a number${of} from ${low} to ${high}`,
];
const LIMITS = ["maxBufferSize", "maxStorageBufferBindingSize"];
const LEAST_LIMIT = 2 ** 20;
const isLimits = (value) =>
  typeof value === "object" &&
  !Array.isArray(value) &&
  Object.entries(value).every(([name, size]) => LIMITS.includes(name) && isWhole(size, LEAST_LIMIT, 2 ** 53 - 1));

const orNull = ([fits, allowed]) => [(value) => value === null || fits(value), `${allowed}, or null`];
const text = (form, allowed) => [(value) => typeof value === "string" && form.test(value), allowed];

const RULES = {
  model: [(value) => isName(value) || isModelFile(value), "the name of a model of this site, or the URL of a .gguf file"],
  vision: orNull([isName, "the name of a vision model of this site"]),
  mode: oneOf("prefer_on_device", "only_on_device", "prefer_in_cloud", "only_in_cloud"),
  poolMiB: whole(1, 65536),
  cloud: orNull(text(/\S/, "the URL of the gateway's stream")),
  adapter: oneOf("auto", "software", "none"),
  rebuildsPerHour: whole(0, 1000),
  cloudBelow: number(0, 1),
  streamBelow: number(1, 2),
  limits: [
    (value) => value === null || isLimits(value),
    `null, or an object with ${LIMITS.join(" and ")} in bytes, whole numbers from ${LEAST_LIMIT}`,
  ],
  contextPressure: orNull(whole(1, 2 ** 20, " of tokens")),
  stallSeconds: orNull(number(1, 3600, " of seconds")),
  site: orNull(text(/^[A-Za-z0-9_-]{8,128}$/, "a site key of 8 to 128 letters, digits, - or _")),
  ancestor: orNull(text(/^https?:\/\/[A-Za-z0-9._:[\]-]+$/, "an origin such as https://shop.example")),
  cloudWhileLoading: [(value) => typeof value === "boolean", "true or false"],
  tune: [(value) => typeof value === "boolean", "true or false"],
  telemetry: orNull(text(/\S/, "the URL that takes records of texts")),
  onProgress: [(value) => typeof value === "function", "a function"],
  onTelemetry: [(value) => typeof value === "function", "a function"],
};

/** The error for a value that is not allowed: what it belongs to, what it may be, and what it was. */
export function refuse(name, allowed, value) {
  const was = typeof value === "string" ? `'${value.slice(0, 60)}'` : value === null ? "null" : typeof value;
  const shown = ["number", "boolean", "bigint"].includes(typeof value) ? String(value) : was;
  return new TandemError("bad_argument", `${name} must be ${allowed}; it was ${shown}.`, { argument: name, allowed });
}

/** The options that were given, with addresses made absolute to `page`. Throws bad_argument. */
export function checkOptions(options, page) {
  if (options === null || typeof options !== "object") throw refuse("The argument of createClient", "an object", options);
  const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
  const strange = Object.keys(given).filter((name) => !Object.hasOwn(RULES, name));
  if (strange.length) {
    const message = `createClient does not know ${strange.join(", ")}; it takes ${Object.keys(RULES).join(", ")}.`;
    throw new TandemError("bad_argument", message, { unknown: strange });
  }
  for (const [name, value] of Object.entries(given)) {
    const [fits, allowed] = RULES[name];
    if (!fits(value)) throw refuse(name, allowed, value);
  }
  if (given.mode === "only_in_cloud" && given.cloud === null) {
    throw refuse("cloud", "a URL when mode is only_in_cloud", null);
  }
  if (given.mode === "only_on_device" && (given.telemetry ?? null) !== null) {
    throw refuse("telemetry", "null when mode is only_on_device, which sends nothing out", given.telemetry);
  }
  // The worker's own address is another one than the page's, so relative addresses are resolved here.
  if (given.model && isModelFile(given.model)) given.model = absolute("model", given.model, page);
  if (given.cloud) given.cloud = absolute("cloud", given.cloud, page);
  if (given.telemetry) given.telemetry = absolute("telemetry", given.telemetry, page);
  return given;
}

function absolute(name, address, page) {
  try {
    return new URL(address, page).href;
  } catch {
    throw refuse(name, "an address", address);
  }
}
