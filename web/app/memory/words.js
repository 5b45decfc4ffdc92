// The map's sentences: spans, moves and decisions with their figures, in the language of the interface.

import { h } from "../dom.js";
import { clock, memorySize } from "../format.js";
import { has, t } from "../i18n.js";
import { kindOf } from "./kinds.js";

export const kindTitle = (kind) => t(kind === "free" ? "pool.free" : `memory.kind.${kind}`);

/** A tenant or model by the name that the page has for it, else by its own. */
export const tenantTitle = (name) => (has(`tenant.${name}`) ? t(`tenant.${name}`) : String(name));

/** What lies in a span (or a gap, whose tenant is null), how big it is and where. `slab` counts from 1. */
export function spanWords(slab, span, role) {
  const where = { slab, size: memorySize(span.size), offset: memorySize(span.offset) };
  if (span.tenant === null) return t("memory.gap", where);
  const kind = kindTitle(kindOf(span, role));
  return t("memory.span", { ...where, kind, label: span.label }) + filledWords(span);
}

/** " (1.2 MiB filled)" for a span that says how much of it holds anything, else nothing. */
export function filledWords({ filled }) {
  return Number.isFinite(filled) ? ` (${t("memory.filled", { filled: memorySize(filled) })})` : "";
}

const time = (at) => h("time", { datetime: new Date(at).toISOString() }, clock(at));

/** "18:03:12 Language model in 2.2 MiB layers.28", as an item of a list. */
export function moveLine({ at, tenant, direction, bytes, label }) {
  const what = `${tenantTitle(tenant)} ${t(direction === "in" ? "memory.in" : "memory.out")} ${memorySize(bytes)} `;
  return h("li", {}, time(at), " ", what, h("code", { lang: "en" }, label));
}

/** "18:03:12 Language model: needs 81 MiB, room 49 MiB: a part stays, the rest streams", as an item of a list. */
export function decisionLine({ when, model, need, room, action }) {
  const done = has(`memory.action.${action}`) ? t(`memory.action.${action}`) : String(action);
  const figures = { model: tenantTitle(model), need: memorySize(need), room: memorySize(room), done };
  return h("li", { "data-action": action }, time(when), " ", t("memory.decision", figures));
}
