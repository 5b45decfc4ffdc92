// What a scripted visit does in its page: opens a client, writes a text, closes. Evaluated as a function; leaves
// `globalThis.visits`. Times are in ms since 1970.
async () => {
  const { createClient, TandemError } = await import("/tandem.js");
  const now = () => performance.timeOrigin + performance.now();
  const told = (error) => ({
    ours: error instanceof TandemError, code: error.code, message: error.message, details: error.details,
  });
  let struck = null; // when the fault came
  new BroadcastChannel("faults").onmessage = ({ data }) => { struck ??= data; };

  /** A visitor of before: `fresh` has nothing of ours, others the weights. No visit knows how earlier ones ended. */
  const forget = async (fresh) => {
    const remove = async (folder, name) => {
      for (let wait = 10; ; wait *= 2) {
        try {
          return await folder.removeEntry(name, { recursive: true });
        } catch (error) {
          if (error.name === "NotFoundError") return undefined;
          if (wait > 1000) throw error; // a worker that has just gone holds its files for a moment
          await new Promise((resolve) => setTimeout(resolve, wait));
        }
      }
    };
    const root = await navigator.storage.getDirectory();
    for await (const [name, folder] of root.entries()) {
      if (fresh) await remove(root, name);
      else if (folder.kind === "directory") await remove(folder, "notes.json");
    }
  };

  /**
   * What the device by itself writes after the text that was shown before it took over, where it did: having read that
   * text anew, it need not go on as it would have in one go.
   */
  const continuations = new Map();
  const continuation = async ({ inspect }, { prompt, maxTokens }, events) => {
    const at = events.findLastIndex(({ type, source }) => type === "status" && source === "device");
    const shown = events.slice(0, Math.max(0, at)).map(({ text }) => text ?? "").join("");
    if (!shown) return null;
    if (!continuations.has(shown)) {
      const begun = await inspect.render([{ role: "user", content: prompt }]);
      const ids = await inspect.tokenize(begun + shown);
      continuations.set(shown, await inspect.detokenize(await inspect.greedy(ids, maxTokens)));
    }
    return { shown, text: continuations.get(shown) };
  };

  const write = async (client, request, seen, crashAt) => {
    let tokens = 0;
    for await (const event of client.generate(request)) {
      seen.events.push({ ...event, at: now() });
      if (event.type !== "text" || event.source !== "device") continue;
      const before = tokens;
      tokens += event.tokens;
      if (before < crashAt && tokens >= crashAt) {
        struck = now();
        await globalThis.crashGpu();
      }
    }
  };

  /** Whatever `work` comes to, in `seen`: "done", "error", or "hung" where neither came within `deadline` ms. */
  const watched = async (work, deadline) => {
    struck = null;
    const seen = { events: [], opened: null, status: null, error: null, ended: "hung", endedAt: null, struck: null };
    const attempt = async () => {
      try {
        await work(seen);
        seen.ended = "done";
      } catch (error) {
        seen.error = told(error);
        seen.ended = "error";
      }
      seen.endedAt = now();
    };
    await Promise.race([attempt(), new Promise((resolve) => setTimeout(resolve, deadline))]);
    return { ...seen, events: [...seen.events], struck };
  };

  const visits = (globalThis.visits = {
    client: null,
    /** One visit; `fault` is for data/faults.js in the page itself. */
    async run({ fault, options, request, fresh, crashAt, deadline }) {
      await forget(fresh);
      self.fault = fault;
      visits.client = null;
      const seen = await watched(async (seen) => {
        visits.client = await createClient(options);
        seen.opened = now();
        seen.status = visits.client.status;
        await write(visits.client, request, seen, crashAt);
      }, deadline);
      if (seen.ended === "done" && options.mode !== "only_on_device") {
        seen.continuation = await continuation(visits.client, request, seen.events);
      }
      await visits.client?.close();
      return seen;
    },
    /** A client that stays, in the place of one of before. */
    async open(options) {
      await visits.client?.close();
      visits.client = await createClient(options);
    },
    /** One more text of that client. */
    async text({ request, deadline }) {
      const seen = await watched((seen) => write(visits.client, request, seen, null), deadline);
      if (seen.ended === "done") seen.continuation = await continuation(visits.client, request, seen.events);
      return seen;
    },
  });
}
