"""``web/tandem.js`` with a stand-in for the worker, run in Node."""

from __future__ import annotations

from typing import Any

from tests.unit.node_runner import run_node

SETUP = """
  globalThis.location = { href: "http://shop.example/page/" };
  let worker = null;
  const posted = [];
  globalThis.Worker = class {
    constructor(url) { worker = this; this.url = String(url); this.ended = false; }
    postMessage([line, attachment]) {
      const message = JSON.parse(line);
      posted.push(message);
      queueMicrotask(() => this.answer?.(message, attachment));
    }
    terminate() { this.ended = true; }
    say(message, attachment = null) { this.onmessage({ data: [JSON.stringify(message), attachment] }); }
  };
  const timers = [];
  const later = globalThis.setTimeout;
  globalThis.setTimeout = (work, ms, ...rest) => { timers.push({ work, ms }); return later(work, ms, ...rest); };
  let asked = null;
  const cloud = (...events) => {
    globalThis.fetch = async (url, options) => {
      asked = { url, ...JSON.parse(options.body) };
      const lines = [...events.map((event) => JSON.stringify(event)), "[DONE]"].map((data) => `data: ${data}\\n\\n`);
      return new Response(lines.join(""), { headers: { "content-type": "text/event-stream" } });
    };
  };
  const { createClient, TandemError } = await import(web + "tandem.js");
  const { EventStream } = await import(web + "event-stream.js");
  const status = { tier: "high", adapter: "gpu", software: false, source: "device", reason: "", pool: null };
  const opening = (options) => {
    const client = createClient(options);
    worker.answer = ({ op, id }) => { if (op === "open") worker.say({ re: id, value: status }); };
    return client;
  };
  const failure = async (work) => {
    try { return { value: await work() }; }
    catch (error) { return { ours: error instanceof TandemError, code: error.code, message: error.message }; }
  };
  const collect = async (iterator) => {
    const all = [];
    for await (const event of iterator) all.push(event);
    return all;
  };
  const turn = () => new Promise((resolve) => later(resolve, 5));
"""


def js(body: str) -> Any:
    return run_node(SETUP + body + "\n", None)
