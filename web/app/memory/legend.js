// What the fills of the map mean, with the bytes of each kind: the totals and the key in one list.

import { h } from "../dom.js";
import { memorySize } from "../format.js";
import { t } from "../i18n.js";
import { totals } from "./kinds.js";
import { swatch } from "./svg.js";
import { kindTitle } from "./words.js";

export class Legend {
  element = h("ul.legend");

  show(slabs) {
    const sums = Object.entries(totals(slabs)).filter(([kind, { size }]) => size > 0 || kind === "free");
    this.element.replaceChildren(
      ...sums.map(([kind, { size, filled }]) => {
        const bytes = memorySize(size);
        const figures = filled === null ? bytes : t("memory.filled_of", { filled: memorySize(filled), size: bytes });
        return h("li", { "data-kind": kind }, swatch(kind), `${kindTitle(kind)} `, h("b", {}, figures));
      }),
    );
  }
}
