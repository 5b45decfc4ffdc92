// The start as a returning visitor has it: pages of their own, one after the other, from navigation to first token.

const PATIENCE_MS = 300_000;

/** One visit in a frame: {about, prompt_tokens, ready_ms, first_token_ms, rows}. Rejects where it fails. */
function visit(options, messages) {
  const frame = document.createElement("iframe");
  const query = new URLSearchParams({ visit: JSON.stringify({ options, messages }) });
  return new Promise((resolve, reject) => {
    const hear = ({ source, data }) => {
      if (source !== frame.contentWindow) return;
      removeEventListener("message", hear);
      clearTimeout(late);
      frame.remove();
      if (data.error) reject(new Error(data.error));
      else resolve(data);
    };
    const late = setTimeout(() => {
      removeEventListener("message", hear);
      frame.remove();
      reject(new Error(`no first token within ${PATIENCE_MS / 1000} s`));
    }, PATIENCE_MS);
    addEventListener("message", hear);
    frame.src = `bench-visit.html?${query}`;
    document.body.append(frame);
  });
}

/** Posts a row for the first visit, one for each of `reps` that follow it, and the timeline of the quickest of those. */
export async function start(post, options, messages, reps) {
  let best = null;
  for (let number = 0; number <= reps; number++) {
    const { rows, about, ...figures } = await visit(options, messages);
    if (!number) await post({ ...about, browser: navigator.userAgent.match(/Chrom\w*\/[\d.]+/)?.[0] ?? "", reps });
    await post({ bench: "start", visit: number ? `cached ${number}` : "first", ...figures });
    if (number && (!best || figures.first_token_ms < best.first_token_ms)) best = { ...figures, rows };
  }
  for (const row of best?.rows ?? []) await post({ bench: "timeline", ...row });
}
