// The bench of long contexts, as a page has it: decode behind prompts of different lengths, in turns.

import { decodeRate, median, promptOf, spread, timed } from "./bench-figures.js";

/** Posts a row "context" for each of `contexts`, the first one's share being 1: `tokens` tokens behind a prompt of so
 * many, `reps` times. In turns, as in bench-language.js, and behind a round that does not count. */
export async function longContexts(post, client, messages, { reps, tokens, contexts }) {
  const { inspect } = client;
  const ids = await inspect.tokenize(await inspect.render(messages));
  const fitting = [];
  for (const context of contexts) {
    // The round that does not count; what does not fit the cache says so, and the others are measured all the same.
    try {
      await decoded(inspect, promptOf(ids, context), tokens);
      fitting.push(context);
    } catch (error) {
      await post({ bench: "context", context, error: String(error), code: error?.code ?? "" });
    }
  }
  const rounds = [];
  for (let i = 0; i < reps; i++) {
    const rates = [];
    for (const context of fitting) rates.push(await decoded(inspect, promptOf(ids, context), tokens));
    rounds.push(rates);
  }
  for (const [k, context] of fitting.entries()) await post(rowOf(context, tokens, rounds, k));
}

function rowOf(context, tokens, rounds, k) {
  const row = { bench: "context", context, context_tokens: tokens };
  const rates = rounds.map((round) => round[k]).filter((rate) => rate !== null);
  if (!rates.length) return row;
  const shares = rounds.map((round) => round[k] / round[0]).filter((share) => share > 0 && Number.isFinite(share));
  const share = shares.length ? { context_share: median(shares) } : {};
  return { ...row, context_tps: median(rates), context_spread: spread(rates), ...share };
}

/** Tokens a second behind a prompt, or null. */
async function decoded(inspect, ids, tokens) {
  const first = await timed(() => inspect.greedy(ids, 1));
  const whole = await timed(() => inspect.greedy(ids, tokens + 1));
  return decodeRate(tokens, whole, first);
}
