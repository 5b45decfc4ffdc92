// Records of the texts that Python did not see to their end, since its worker could not run or died at work. Their form
// is that of pyapp/routing/telemetry.py, which makes all the others.

/** What is measured of one text. `shown` is what the worker had shown before: see WorkerLink.generate. */
class TextWatch {
  #shown;
  #sides;
  #fallback = null;
  #found = performance.now();
  #outcome = "abort";
  #usage = { promptTokens: 0, deviceTokens: 0, cloudTokens: 0 };

  constructor(mode, shown, reason) {
    this.#shown = shown;
    this.#usage = { ...this.#usage, deviceTokens: shown.deviceTokens, cloudTokens: shown.cloudTokens };
    this.#sides = ["device", "cloud"].filter((side) => shown[`${side}Tokens`] > 0);
    if (shown.text === "" && mode !== "prefer_on_device") return; // the cloud was the one to write
    const midText = shown.text !== "";
    this.#fallback = { reason, from: shown.source, to: "cloud", takeover_ms: null, mid_text: midText };
  }

  /** One event of the text that goes on. */
  heard(event) {
    if (event.type === "text") {
      const now = performance.now();
      this.#shown.first ??= now;
      if (this.#fallback?.takeover_ms === null) this.#fallback.takeover_ms = ms(now - this.#found);
      if (!this.#sides.includes(event.source)) this.#sides.push(event.source);
      this.#usage.cloudTokens += event.tokens; // until the usage says it better
    } else if (event.type === "usage") this.#usage = event;
    else if (event.type === "done") this.#outcome = event.reason;
  }

  failed(error) {
    this.#outcome = error.code ?? "internal";
  }

  record(mode) {
    const { began, first } = this.#shown;
    return {
      mode,
      tier: "unsupported",
      outcome: this.#outcome,
      sides: this.#sides,
      device_tokens: this.#usage.deviceTokens,
      cloud_tokens: this.#usage.cloudTokens,
      prompt_tokens: this.#usage.promptTokens,
      fallbacks: this.#fallback ? [this.#fallback] : [],
      first_ms: first === null ? null : ms(first - began),
      total_ms: ms(performance.now() - began),
    };
  }
}

/**
 * Tells of texts: to `onTelemetry`, and to the address `telemetry` where there is one, with the token of
 * `shop` (access-token.js) if there is one. Never in a text's way.
 */
export class Telemetry {
  #mode;
  #url;
  #onTelemetry;
  #shop;

  constructor({ mode = "prefer_on_device", telemetry = null }, onTelemetry, shop) {
    this.#mode = mode;
    this.#url = telemetry;
    this.#onTelemetry = onTelemetry;
    this.#shop = shop;
  }

  /** Does `work(watch)`, which says what it hears of one text, and tells of it at its end. */
  async text(shown, reason, work) {
    const watch = new TextWatch(this.#mode, shown, reason);
    try {
      return await work(watch);
    } catch (error) {
      watch.failed(error);
      throw error;
    } finally {
      this.#tell(watch.record(this.#mode));
    }
  }

  #tell(record) {
    try {
      this.#onTelemetry(record);
    } catch (error) {
      console.error("onTelemetry failed", error);
    }
    if (this.#url === null) return;
    const headers = { "content-type": "application/json" };
    const body = JSON.stringify({ records: [record] });
    const ask = this.#shop?.to(this.#url) ?? fetch;
    ask(this.#url, { method: "POST", headers, body, keepalive: true, cache: "no-store" }).catch(() => {});
  }
}

const ms = (milliseconds) => Math.round(milliseconds * 10) / 10;
