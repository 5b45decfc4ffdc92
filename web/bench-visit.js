// A page of its own in a frame of the bench: from its navigation to the first token, as a visitor has it. Posts
// {about, prompt_tokens, ready_ms, first_token_ms, rows} or {error} to the bench; the client is closed by then.

import { createClient } from "./tandem.js";
import { ended, now, rows, stages } from "./timeline.js";

const zero = performance.timeOrigin;
const { options, messages } = JSON.parse(new URLSearchParams(location.search).get("visit"));

async function visit() {
  const asked = now();
  ended("page", zero, asked);
  const client = await createClient(options);
  const ready = now();
  ended("client opened", asked, ready, ["page"]);
  let first = 0;
  let promptTokens = 0;
  for await (const event of client.generate({ messages, maxTokens: 1 })) {
    // A token that is no whole character, or the end of the text, shows in the usage only.
    if (event.type === "text" || event.type === "usage") first ||= now();
    if (event.type === "usage") promptTokens = event.promptTokens;
  }
  ended("first token", ready, first, ["client opened"]);
  const { adapter, software, tier } = client.status;
  const timeline = [...stages, ...(await client.inspect.timeline())];
  await client.close();
  return {
    about: { adapter, software, tier },
    prompt_tokens: promptTokens,
    ready_ms: ready - zero,
    first_token_ms: first - zero,
    rows: rows(timeline, zero),
  };
}

visit()
  .catch((error) => ({ error: String(error?.message ?? error) }))
  .then((told) => parent.postMessage(told, location.origin));
