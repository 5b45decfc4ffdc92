// Before weights are downloaded for the first time: how big they are; and on a metered connection, the question.

import { h, icon } from "./dom.js";
import { megabytes } from "./format.js";
import { onLanguage, say, t } from "./i18n.js";

/** Does the visitor ask sites to save data? */
export function savesData() {
  return Boolean(navigator.connection?.saveData) || matchMedia("(prefers-reduced-data: reduce)").matches;
}

const sum = (downloads) => downloads.reduce((total, { bytes }) => total + (bytes ?? 0), 0);
const known = (bytes) => (bytes === null ? t("download.unknown") : megabytes(bytes));

export class DownloadNotice {
  #sentence = h("p.sentence");
  #parts = h("p.hint");
  #accept = h("button.primary.small", { type: "button", "data-tandem": "download" });
  #cloud = h("button.small", { type: "button", "data-tandem": "cloud-only" });
  #actions = h("div.actions", { hidden: true }, this.#accept, this.#cloud);
  #draw = () => {};

  constructor() {
    this.element = h(
      "div.notice.download",
      { "data-tandem": "notice", role: "status", hidden: true },
      icon("download"),
      h("div.grow", {}, this.#sentence, this.#parts),
      this.#actions,
    );
    onLanguage(() => this.#draw());
  }

  /**
   * Tell what a start will fetch: models, and beside them `runtime` bytes of Python (null: unknown). Where data is
   * dear (`ask`), wait for the answer: "download", or "cloud" when the visitor would rather have the cloud write;
   * `cloudDownloads` is what is fetched then (the photo's model), or null where the cloud may not be used.
   */
  async tell(downloads, runtime, ask, cloudDownloads) {
    if (!downloads.length) return "download";
    const size = () => known(downloads.some(({ bytes }) => bytes === null) ? null : sum(downloads));
    this.#draw = () => {
      say(this.#sentence, ask ? "download.ask" : "download.tell", { size });
      const parts = downloads.map(({ title, bytes }) => `${title}: ${known(bytes)}`);
      if (runtime !== null) parts.push(t("download.python", { size: megabytes(runtime) }));
      this.#parts.textContent = parts.join(" · ");
      say(this.#accept, "download.accept", { size });
      if (cloudDownloads) {
        const fetched = () => megabytes(sum(cloudDownloads));
        say(this.#cloud, sum(cloudDownloads) ? "download.cloud" : "download.cloud.nothing", { size: fetched });
      }
    };
    this.#draw();
    this.#cloud.hidden = !cloudDownloads;
    this.#actions.hidden = !ask;
    this.element.hidden = false;
    if (!ask) return "download";
    const choice = await new Promise((resolve) => {
      this.#accept.addEventListener("click", () => resolve("download"), { once: true });
      this.#cloud.addEventListener("click", () => resolve("cloud"), { once: true });
    });
    this.element.hidden = true;
    return choice;
  }

  hide() {
    this.element.hidden = true;
  }
}
