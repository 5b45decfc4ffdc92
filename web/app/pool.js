// The pool of GPU memory as a bar: which model holds which bytes of the budget.

import { h } from "./dom.js";
import { mebibytes } from "./format.js";
import { hueOf } from "./hues.js";
import { has, onLanguage, say, t } from "./i18n.js";

export class PoolBar {
  #bar = h("div.pool-bar", { "aria-hidden": "true" });
  #legend = h("ul.legend");
  #total = h("p.hint");
  #pool = null;
  #titles = {};

  constructor() {
    const title = say(h("h2", { id: "pool-title" }), "pool.title");
    this.element = h(
      "section.card.pool",
      { "data-tandem": "pool", "aria-labelledby": "pool-title" },
      h("div.card-head", {}, title, this.#total),
      this.#bar,
      this.#legend,
    );
    onLanguage(() => this.#draw());
    this.#draw();
  }

  /** `pool` as in client.status; `titles` are the models' own names: { language, vision }. */
  show(pool, titles = this.#titles) {
    if (JSON.stringify([pool, titles]) === JSON.stringify([this.#pool, this.#titles])) return;
    this.#pool = pool;
    this.#titles = titles;
    this.#draw();
  }

  #draw() {
    this.#bar.replaceChildren();
    this.#legend.replaceChildren();
    this.#bar.hidden = this.#legend.hidden = !this.#pool;
    if (!this.#pool) {
      this.#total.textContent = t("pool.none");
      return;
    }
    const { budget, used, tenants } = this.#pool;
    this.#total.textContent = t("pool.total", { used: mebibytes(used), budget: mebibytes(budget) });
    tenants.forEach((tenant, index) => {
      const hue = hueOf(tenant.name, index);
      // `resident` is a number of bytes, or says whether all of them are there.
      const resident = typeof tenant.resident === "number" ? tenant.resident : tenant.resident ? tenant.bytes : 0;
      const segment = h(`span.segment.${hue}`);
      segment.style.width = `${(100 * tenant.bytes) / Math.max(budget, used, 1)}%`;
      if (!resident) segment.classList.add("absent");
      this.#bar.append(segment);
      const size =
        resident < tenant.bytes
          ? t("pool.resident", { resident: mebibytes(resident), bytes: mebibytes(tenant.bytes) })
          : mebibytes(tenant.bytes);
      const key = h(`span.swatch.${hue}`, { "aria-hidden": "true" });
      this.#legend.append(h("li", { "data-tenant": tenant.name }, key, `${this.#title(tenant.name)} `, h("b", {}, size)));
    });
    const free = Math.max(0, budget - used);
    this.#legend.append(h("li", {}, h("span.swatch.free", { "aria-hidden": "true" }), `${t("pool.free")} `, h("b", {}, mebibytes(free))));
  }

  #title(name) {
    const key = `tenant.${name}`;
    return this.#titles[name] ?? (has(key) ? t(key) : name);
  }
}
