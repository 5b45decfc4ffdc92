// The page's query parameters, as options for createClient. Nothing is corrected here: a wrong value reaches
// createClient, which refuses it with a sentence that says what is allowed.

const NOTHING = new Set(["", "none", "null", "off"]);

/** { options for createClient, lang } from a query string. Only what was given is in `options`. */
export function readParameters(search) {
  const query = new URLSearchParams(search);
  const options = {};
  for (const name of ["adapter", "model", "mode", "site"]) {
    if (query.get(name)) options[name] = query.get(name);
  }
  for (const name of ["vision", "cloud", "telemetry"]) {
    if (!query.has(name)) continue;
    const value = query.get(name);
    options[name] = NOTHING.has(value.toLowerCase()) ? null : value;
  }
  if (query.get("pool")) options.poolMiB = Number(query.get("pool"));
  return { options, lang: query.get("lang") };
}
