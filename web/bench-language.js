// The bench of the language model, as a page has it: decode and streamed text in turns, first token and prompt.

import { decodeRate, median, promptOf, spread, timed } from "./bench-figures.js";
import { TextRate } from "./text-rate.js";

/** A few frames: what a text left to draw is drawn by then. Too short for a GPU to lower its clock. */
const REST_MS = 50;

/** Posts the rows "language" and "stream" of `messages`: texts of `tokens` tokens, and a prompt of `prompt`, `reps` times. */
export async function language(post, client, messages, { reps, tokens, prompt }) {
  const { inspect } = client;
  const ids = await inspect.tokenize(await inspect.render(messages));
  const long = promptOf(ids, prompt);
  const cold = await timed(() => inspect.greedy(ids, 1));
  // A GPU raises its clock only after a second or so of work. What is compared goes in turns, so that a change of the
  // clock is in both, and the first round is there to warm up.
  await round(client, ids, messages, tokens);
  const rounds = [];
  for (let i = 0; i < reps; i++) rounds.push(await round(client, ids, messages, tokens));
  const prefill = [];
  for (let i = 0; i < reps; i++) prefill.push(await timed(() => inspect.greedy(long, 1)));
  const first = rounds.map((each) => each.first);
  const again = rounds.map((each) => each.again);
  const rates = rounds.map((each) => each.decode).filter((rate) => rate !== null);
  await post({
    bench: "language",
    prompt_tokens: ids.length,
    first_token_cold_ms: cold,
    first_token_ms: median(first),
    first_token_spread: spread(first),
    first_token_again_ms: median(again),
    prefill_tokens: prompt,
    prefill_tps: (prompt * 1000) / median(prefill),
    decode_tokens: tokens,
    ...(rates.length ? { decode_tps: median(rates), decode_spread: spread(rates) } : {}),
  });
  await post(streamRow(rounds));
}

function streamRow(rounds) {
  const row = {
    bench: "stream",
    first_text_ms: median(rounds.map(({ stream }) => stream.first)),
    stream_tokens: rounds[0].stream.tokens,
  };
  // A text that came all at once has no rate.
  const rated = rounds.filter(({ stream }) => stream.tps !== null);
  if (!rated.length) return row;
  const speeds = rated.map(({ stream }) => stream.tps);
  const shares = rated.filter(({ decode }) => decode !== null).map(({ stream, decode }) => stream.tps / decode);
  const share = shares.length ? { stream_share: median(shares) } : {};
  return { ...row, stream_tps: median(speeds), stream_spread: spread(speeds), ...share };
}

/** One of each: ms to the first token after a rest and to one right behind it, tokens a second of the decode behind that
 * (or null), and a streamed text. The decode is less the second one, since its own first token comes without a rest as
 * well. */
async function round(client, ids, messages, tokens) {
  const first = await timed(() => client.inspect.greedy(ids, 1));
  const again = await timed(() => client.inspect.greedy(ids, 1));
  const whole = await timed(() => client.inspect.greedy(ids, tokens + 1));
  const stream = await streamed(client, messages, tokens);
  return { first, again, decode: decodeRate(tokens, whole, again), stream };
}

/** Tokens a second as a page sees them: text events, drawn into one text node as they come. */
async function streamed(client, messages, maxTokens) {
  const target = document.body.appendChild(document.createElement("p"));
  const node = target.appendChild(document.createTextNode(""));
  const start = performance.now();
  const rate = new TextRate();
  let usage = {};
  for await (const event of client.generate({ messages, maxTokens })) {
    rate.heard(event);
    if (event.type === "text") node.appendData(event.text);
    else if (event.type === "usage") usage = event;
  }
  target.remove();
  await new Promise((done) => setTimeout(done, REST_MS));
  const tokens = usage.deviceTokens ?? 0;
  return { first: rate.first - start, tokens, tps: rate.of(tokens) };
}
