// The cloud stream without Python: for browsers where the runtime cannot start, and for a worker that died at work.

import { eventParser } from "./event-parser.js";
import { Joiner } from "./joiner.js";
import { TandemError } from "./tandem-error.js";

const FIRST_MS = 75_000; // longer than the gateway's own limits, which give the better reason
const IDLE_MS = 45_000;
const NOTHING = { text: "", deviceTokens: 0, cloudTokens: 0 };

export const failed = (message, details) => new TandemError("cloud_unavailable", message, details);

/**
 * Asks the gateway and yields `{type: "text" | "usage" | "done", ...}` with source "cloud"; usage and done come last.
 * An abort of `signal` ends in usage and done too, by who wrote last. `before`: what was shown already, by a side that
 * failed. `ask` is a `fetch`, or one that brings a token (access-token.js).
 */
export async function* readCloud(url, request, signal, before = NOTHING, ask = fetch) {
  const messages = before.text ? [...request.messages, { role: "assistant", content: before.text }] : request.messages;
  const { deviceTokens } = before;
  const left = request.maxTokens - deviceTokens - before.cloudTokens;
  const { temperature, topP: top_p, seed } = request;
  const joiner = new Joiner(before.text);
  let pieces = 0;
  let waiting = 0; // pieces that the joiner holds
  let characters = 0;
  let [usage, reason, writer] = [null, "abort", before.text ? before.source : null];
  // Of so many tokens those that are new, by the share of characters.
  const fresh = (tokens) => tokens - Math.round((tokens * joiner.repeated) / Math.max(1, characters));
  const written = (text) => ({ type: "text", text, tokens: Math.max(1, fresh(waiting)), source: "cloud" });
  if (left <= 0) reason = "length";
  else if (!signal?.aborted) {
    try {
      const body = { messages, max_tokens: left, temperature, top_p, seed };
      try {
        for await (const event of exchange(url, body, signal, ask)) {
          if (event.usage) usage = event.usage;
          if (typeof event.text !== "string" || event.text === "") continue;
          pieces += 1;
          waiting += 1;
          characters += event.text.length;
          const text = joiner.push(event.text);
          if (!text) continue;
          yield written(text);
          waiting = 0;
          writer = "cloud";
        }
      } catch (error) {
        // Figures with a reason come last: all of the text is there, and only its end mark is not.
        if (!usage?.finish_reason || error.code !== "cloud_unavailable") throw error;
      }
      const text = joiner.flush();
      if (text) writer = "cloud";
      if (text) yield written(text);
      const tokens = usage?.completion_tokens ?? pieces;
      reason = usage?.finish_reason ?? (tokens >= left ? "length" : "stop");
    } catch (error) {
      if (!signal?.aborted) throw error;
    }
  }
  // Until the gateway has counted, a piece counts as one token. What was repeated counts for who wrote it first.
  const cloudTokens = before.cloudTokens + fresh(usage?.completion_tokens ?? pieces);
  const promptTokens = usage?.prompt_tokens ?? 0;
  yield { type: "usage", promptTokens, completionTokens: deviceTokens + cloudTokens, deviceTokens, cloudTokens };
  const end = reason === "length" || reason === "abort" ? reason : "stop";
  yield { type: "done", reason: end, source: end === "abort" ? writer : "cloud" };
}

/** One POST; yields the JSON object of each event until `[DONE]`. Leaving the loop ends the exchange. */
async function* exchange(url, body, signal, ask) {
  const controller = new AbortController();
  const stop = () => controller.abort();
  signal?.addEventListener("abort", stop);
  let waited = null;
  const within = (work, limit, begun = performance.now()) => {
    const timer = setTimeout(() => {
      waited = limit;
      controller.abort();
    }, Math.max(0, begun + limit - performance.now()));
    return work.finally(() => clearTimeout(timer));
  };
  const broke = (error) => {
    if (error instanceof TandemError) return error;
    return waited === null
      ? failed(`The cloud gateway cannot be reached, or the connection broke (${error.message}); check the network.`)
      : failed(`The cloud sent nothing for ${waited / 1000} seconds; try again.`, { seconds: waited / 1000 });
  };
  try {
    const asked = ask(url, {
      method: "POST",
      headers: { "content-type": "application/json", accept: "text/event-stream" },
      body: JSON.stringify(body),
      cache: "no-store",
      credentials: "same-origin",
      signal: controller.signal,
    });
    const response = await within(asked, FIRST_MS).catch((error) => Promise.reject(broke(error)));
    if (response.status !== 200) {
      throw await within(refusal(response), IDLE_MS).catch((error) => Promise.reject(broke(error)));
    }
    const kind = (response.headers.get("content-type") ?? "").split(";")[0].trim();
    if (kind.toLowerCase() !== "text/event-stream") {
      throw failed(`The address ${url} answered with ${kind || "no type"}, not an event stream; check the address.`);
    }
    const reader = response.body.getReader();
    const parse = eventParser();
    // Bytes alone are no sign of life: a proxy's comments would keep a dead stream open for ever.
    let [limit, begun] = [FIRST_MS, performance.now()];
    for (;;) {
      const part = await within(reader.read(), limit, begun).catch((error) => Promise.reject(broke(error)));
      for (const data of parse(part.value, part.done)) {
        if (data.trim() === "[DONE]") return;
        const event = object(data);
        if (event === null) throw failed("The cloud sent an event that is not a JSON object; check the address.");
        if (event.error) throw named(event.error);
        yield event;
        [limit, begun] = [IDLE_MS, performance.now()];
      }
      if (part.done) throw failed("The cloud's answer was cut off before its end; try again.");
    }
  } finally {
    signal?.removeEventListener("abort", stop);
    controller.abort();
  }
}

/** The JSON object that `text` is, else null. */
export function object(text) {
  try {
    const value = JSON.parse(text);
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

/** The gateway's own error; whatever is not about the request counts as the cloud being unavailable. */
function named(error, details = {}) {
  const message = typeof error === "string" ? error : error.message;
  const code = ["bad_argument", "context_full"].includes(error.code) ? error.code : "cloud_unavailable";
  return new TandemError(code, message || "The cloud reported an error without saying which; try again.", details);
}

/** What the gateway says in a response with another status than 200. */
export async function refusal(response) {
  const body = object(await response.text());
  if (body?.error) return named(body.error, { status: response.status });
  return failed(`The cloud gateway answered with HTTP ${response.status}; check its address, or try again later.`);
}
