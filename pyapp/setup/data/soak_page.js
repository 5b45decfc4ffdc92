// What the soak does in its page: the door, driven without end. Evaluated as a function; leaves `globalThis.soak`.
async () => {
  const { createClient } = await import("/tandem.js");
  const canvas = new OffscreenCanvas(320, 240);
  const context = canvas.getContext("2d");
  const shades = context.createLinearGradient(0, 0, 320, 240);
  for (const [at, shade] of [[0, "#b21"], [0.5, "#fd8"], [1, "#125"]]) shades.addColorStop(at, shade);
  context.fillStyle = shades;
  context.fillRect(0, 0, 320, 240);
  const photo = await canvas.convertToBlob({ type: "image/png" });
  const channel = new BroadcastChannel("soak-ledger");
  const soak = {
    ledger: null, // what a worker told last
    client: null,
    request: null,
    shown: "", // of the text that is being written
    writing: null,
    ended: true, // whether it is complete
    async open(options, maxTokens) {
      soak.client = await createClient({ mode: "only_on_device", cloud: null, ...options });
      soak.request = { prompt: "Tell me a long story about a lamp.", maxTokens };
    },
    /** The labels of the photo, and who gave them. */
    async look() {
      const { labels, source } = await soak.client.describe(photo);
      return { labels: labels.map(({ index }) => index), source };
    },
    /** A text, and how it ended; so many times as long as others. `signal` may end it. */
    async write({ signal, times = 1 } = {}) {
      soak.shown = "";
      soak.ended = false;
      let reason = null;
      const maxTokens = soak.request.maxTokens * times;
      for await (const event of soak.client.generate({ ...soak.request, maxTokens, signal })) {
        if (event.type === "text") soak.shown += event.text;
        if (event.type === "done") reason = event.reason;
      }
      soak.ended = true;
      return { text: soak.shown, reason };
    },
    begin(times) {
      soak.writing = soak.write({ times });
      soak.writing.catch(() => {}); // whoever asks for the end hears of it
    },
    /** A text that is ended after so many ms; below 0: before it has begun. */
    async cut(ms) {
      const control = new AbortController();
      if (ms < 0) control.abort();
      else setTimeout(() => control.abort(), ms);
      return soak.write({ signal: control.signal });
    },
  };
  channel.onmessage = ({ data }) => { soak.ledger = data; };
  globalThis.soak = soak;
}
