// The page at work: builds the parts, and passes photo, brief and events between them and the client.

import { probeDevice as probe } from "../probe.js";
import { Badge } from "./badge.js";
import { Brief } from "./brief.js";
import { languageModel, loadCatalogue, pendingDownloads, runtimeDownload, visionModel } from "./catalogue.js";
import { DownloadNotice, savesData } from "./consent.js";
import { Copy } from "./copy.js";
import { h, icon } from "./dom.js";
import { ErrorBox } from "./errors.js";
import { say } from "./i18n.js";
import { Labels } from "./labels.js";
import { PhotoInput } from "./photo.js";
import { PoolBar } from "./pool.js";
import { ProgressBar } from "./progress.js";
import { Session } from "./session.js";

const STATUS_EVERY_MS = 1000;
// How a text is drawn. The most likely text of a small model goes round in circles now and then; one that is drawn
// hardly does, and with one seed for all it is the same for a photo and a brief whenever they are given.
const FIRST_DRAW = { temperature: 0.7, topP: 0.9, seed: 1 };
const ANOTHER_DRAW = { temperature: 0.8, topP: 0.95 };
// Errors after which the old client cannot answer any more; a retry starts a new one.
const FATAL = new Set(["closed", "device_lost"]);

export class App {
  /**
   * `options` for createClient. `hooks` (all may be left out): `extra`, a button beside "Copy"; `done({text, labels,
   * source})` after each text that was written to its end; `failed(error)`; `status(status or null)` now and then.
   */
  constructor(options, hooks = {}) {
    this.options = options;
    this.hooks = hooks;
    this.titles = {};
    this.facts = null;
    this.blob = null;
    this.describing = Promise.resolve(false);
    this.looking = 0;
    this.unread = null;
    this.abort = null;
    this.state = "idle";
    this.catalogue = loadCatalogue().then((models) => {
      const language = languageModel(models, options);
      this.titles = { language: language?.title, vision: visionModel(models, options)?.title };
      this.brief.offer(language);
      return models;
    });
    this.session = new Session(options, () => this.#gate(), {
      progress: (event) => this.#progress(event),
      state: (state) => this.#setState(state),
    });
    this.#build();
    setInterval(() => this.#drawStatus(), STATUS_EVERY_MS);
  }

  /** Start the client before it is needed, so that the first text comes sooner. */
  async warmUp() {
    try {
      await this.session.ready();
    } catch (error) {
      this.#fail(error, () => this.warmUp());
    }
  }

  #build() {
    this.badge = new Badge(this.options);
    this.errors = new ErrorBox();
    this.progress = new ProgressBar();
    this.notice = new DownloadNotice();
    this.pool = new PoolBar();
    this.labels = new Labels();
    this.photo = new PhotoInput(
      (blob) => this.#newPhoto(blob),
      (key, code) => this.errors.say(key, code),
    );
    const button = (mark, kind, name, act, type = "button") =>
      h(`button.${kind}`, { type, "data-tandem": mark, onclick: act }, icon(name), say(h("span"), `action.${mark}`));
    this.writeButton = button("write", "primary", "pen", null, "submit");
    this.stopButton = button("stop", "stop", "stop", () => this.abort?.abort());
    this.stopButton.disabled = true;
    this.brief = new Brief(() => this.write(false), h("div.actions", {}, this.writeButton, this.stopButton));
    this.copy = new Copy(() => this.write(true), this.hooks.extra ?? null);
  }

  // What a start downloads is told first; where data is dear, the visitor decides.
  async #gate() {
    const [models, { usable }] = await Promise.all([this.catalogue, probe({ adapter: this.options.adapter })]);
    const downloads = await pendingDownloads(models, this.options, usable);
    const mayUseCloud = this.options.cloud !== null && (this.options.mode ?? "prefer_on_device") !== "only_on_device";
    const alone = mayUseCloud ? await pendingDownloads(models, this.options, false) : null;
    const choice = await this.notice.tell(downloads, await runtimeDownload(), savesData(), alone);
    if (choice !== "cloud") return {};
    this.badge.choseCloud();
    return { mode: "only_in_cloud" };
  }

  #progress(event) {
    this.progress.show(event);
    this.loading = !(event.total && event.loaded >= event.total);
    clearTimeout(this.quiet);
    // Loading may go on behind a client that can already answer from the cloud; the bar leaves when it ends.
    if (!this.loading && this.state === "ready") this.quiet = setTimeout(() => this.#loaded(), 800);
  }

  // Ends what a client has loaded behind its answers, since a download that failed reports no end.
  #settle() {
    const behind = this.session.status?.loading ?? false;
    if (this.behind && !behind && !this.looking) {
      this.loading = false;
      this.#loaded();
    }
    this.behind = behind || (this.behind && this.looking > 0);
  }

  #loaded() {
    if (this.session.status?.loading) return;
    this.progress.hide();
    this.notice.hide();
  }

  #setState(state) {
    this.state = state;
    if (state === "ready" && !this.loading) this.#loaded();
    if (state === "idle") this.progress.hide();
    this.#drawStatus();
  }

  #drawStatus() {
    const { status } = this.session;
    this.badge.show(status, this.state);
    this.pool.show(status?.pool ?? null, this.titles);
    this.#settle();
    this.hooks.status?.(status);
  }

  /** Is a model being loaded, a photo looked at or a text written, so that blocks may move at any moment? */
  get atWork() {
    return Boolean(this.loading || this.behind || this.looking || this.abort || this.state === "starting");
  }

  #fail(error, retry) {
    if (FATAL.has(error?.code)) this.session.reset();
    this.notice.hide();
    this.errors.show(error, retry);
    this.hooks.failed?.({ code: error?.code ?? "unexpected", message: String(error?.message ?? error) });
    // A TandemError is told on the page; anything else is a fault of ours and belongs in the console too.
    if (!error?.code) console.error(error);
  }

  #newPhoto(blob) {
    this.blob = blob;
    this.facts = null;
    this.errors.clear();
    this.#describe();
  }

  // Reads the photo; `describing` becomes a promise of whether that worked. A newer photo mutes the older one's end.
  #describe() {
    const { blob } = this;
    const mine = () => this.blob === blob;
    if (this.options.vision === null) {
      this.describing = Promise.resolve(false);
      return;
    }
    this.labels.wait();
    this.looking++;
    this.describing = (async () => {
      try {
        const client = await this.session.ready();
        const found = await client.describe(blob);
        if (!mine()) return this.describing;
        this.facts = { labels: found.labels };
        this.labels.show(found);
        return true;
      } catch (error) {
        if (!mine()) return this.describing;
        this.labels.clear();
        this.unread = blob;
        this.#fail(error, () => this.#describe());
        return false;
      } finally {
        this.looking--;
        this.#drawStatus();
      }
    })();
  }

  /** Write the copy for the photo and the brief. `anew` draws another text than the first one. */
  async write(anew) {
    if (this.abort) return;
    this.errors.clear();
    const { brief, maxTokens } = this.brief.read();
    const abort = (this.abort = new AbortController());
    this.#busy(true);
    try {
      if (await or(this.#material(brief), abort.signal)) {
        const client = await or(this.session.ready(), abort.signal);
        await this.#stream(client, { brief, maxTokens, anew, signal: abort.signal });
      }
    } catch (error) {
      if (!abort.signal.aborted) this.#fail(error, () => this.write(anew));
    } finally {
      this.abort = null;
      this.#busy(false);
      this.#drawStatus();
    }
  }

  // Is there anything to write about? A photo that could not be read is tried again, unless keywords stand in for it.
  async #material(brief) {
    if (this.blob && !this.facts) {
      if (this.unread === this.blob && !brief.keywords.length) {
        this.unread = null;
        this.#describe();
      }
      if (await this.describing) return true;
    }
    if (this.facts || brief.keywords.length) return true;
    if (this.errors.code === null) {
      this.errors.say("error.nothing", "no_photo");
      this.photo.focus();
    }
    return false;
  }

  async #stream(client, { brief, maxTokens, anew, signal }) {
    const draw = anew ? { ...ANOTHER_DRAW, seed: crypto.getRandomValues(new Uint32Array(1))[0] } : FIRST_DRAW;
    const about = this.facts ? { facts: this.facts } : {};
    let done = null;
    let failed = true;
    this.copy.begin();
    this.badge.begin(this.session.status);
    try {
      for await (const event of client.generate({ ...about, brief, maxTokens, ...draw, signal })) {
        this.copy.event(event);
        this.badge.event(event, this.session.status);
        if (event.type === "done") done = event;
      }
      failed = false;
    } finally {
      this.copy.end(failed);
      this.badge.end();
    }
    if (done && done.reason !== "abort") this.hooks.done?.(this.result());
  }

  /** { text, labels, source } as it stands on the page, with the merchant's edits. */
  result() {
    return { text: this.copy.text, labels: this.facts?.labels ?? [], source: this.copy.source };
  }

  #busy(busy) {
    const hadFocus = document.activeElement;
    this.stopButton.disabled = !busy;
    this.writeButton.disabled = busy;
    // A button that goes dark under the keyboard hands the focus to its counterpart, not to the top of the page.
    if (busy && hadFocus === this.writeButton) this.stopButton.focus();
    if (!busy && hadFocus === this.stopButton) this.writeButton.focus();
  }
}

// A promise, or the visitor's abort, whichever is first.
function or(promise, signal) {
  return Promise.race([
    promise,
    new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason), { once: true })),
  ]);
}
