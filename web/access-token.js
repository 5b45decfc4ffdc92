// The token that a gateway with shops asks for, without Python: by the rules of pyapp/routing/access_token.py.

import { failed, object, refusal } from "./cloud-reader.js";

const TOKEN = /^[A-Za-z0-9._~+/-]{1,4096}=*$/;
const ASK_MS = 10_000;
const EARLY_MS = 15_000; // a token is given up that long before its end, or a fifth of its time where that is less
const EARLY_SHARE = 0.2;

/** Tokens for the shop with the key `site`, asked for at `address` from a page of the origin `ancestor`. */
class TokenSource {
  #address;
  #claim;
  #kept = null;
  #asking = null;
  #closed = false;

  constructor(address, site, ancestor) {
    this.#address = address;
    this.#claim = { site, ancestor };
  }

  /** The token at hand, or a new one; callers at the same time share one request. */
  async token() {
    if (this.#kept !== null && performance.now() < this.#kept.until) return this.#kept;
    if (this.#closed && !this.#asking) throw failed("No access token is asked for any more: the client is closed.");
    this.#asking ??= ask(this.#address, this.#claim).finally(() => (this.#asking = null));
    return (this.#kept = await this.#asking);
  }

  /** Forgets a token that the gateway did not take; a newer one is kept. */
  refused(token) {
    if (this.#kept === token) this.#kept = null;
  }

  close() {
    this.#closed = true;
  }
}

/** What a page asks of gateways as one shop. Addresses of the same gateway share its token. */
export class ShopFetch {
  #site;
  #ancestor;
  #sources = new Map();

  constructor(site, ancestor) {
    this.#site = site;
    this.#ancestor = ancestor;
  }

  /**
   * A `fetch` for `url`, the address of a stream or of telemetry, that carries the shop's token. A token that is refused
   * (401) is replaced and the request sent once more.
   */
  to(url) {
    const address = new URL("token", url).href;
    if (!this.#sources.has(address)) {
      this.#sources.set(address, new TokenSource(address, this.#site, this.#ancestor));
    }
    return carrying(this.#sources.get(address));
  }

  /** The client is closed: what is sent from now on goes with the token at hand, and no other is asked for. */
  close() {
    for (const source of this.#sources.values()) source.close();
  }
}

function carrying(tokens) {
  return async (url, init) => {
    const send = async () => {
      const used = await unless(init.signal, () => tokens.token());
      const headers = { ...init.headers, authorization: `Bearer ${used.token}` };
      return [used, await fetch(url, { ...init, headers })];
    };
    const [used, response] = await send();
    if (response.status !== 401) return response;
    await response.body?.cancel();
    tokens.refused(used);
    return (await send())[1];
  };
}

/** A token and when (in ms of `performance.now`) it is given up. */
async function ask(address, claim) {
  const asked = performance.now();
  const response = await fetch(address, {
    method: "POST",
    headers: { "content-type": "application/json", accept: "application/json" },
    body: JSON.stringify(claim),
    cache: "no-store",
    credentials: "same-origin",
    signal: AbortSignal.timeout(ASK_MS),
  }).catch((error) => {
    if (error.name !== "TimeoutError") throw error;
    throw failed(`The cloud gateway gave no access token within ${ASK_MS / 1000} seconds; try again.`);
  });
  if (response.status === 404) {
    throw failed(
      `There are no access tokens at ${address}: leave the site key out where the gateway has no sites, or check the ` +
        "cloud's address.",
    );
  }
  if (response.status !== 200) {
    const error = await refusal(response);
    throw failed(error.message, error.details); // never bad_argument: the caller of a text can do nothing about it
  }
  const { token, expires_in: seconds } = object(await response.text().catch(() => "")) ?? {};
  if (typeof token !== "string" || !TOKEN.test(token) || !(typeof seconds === "number" && seconds > 0)) {
    throw failed(`The address ${address} answered with something that is no access token; check the address.`);
  }
  return { token, until: asked + seconds * 1000 - Math.min(EARLY_MS, seconds * 1000 * EARLY_SHARE) };
}

/** What `work()` resolves with, unless `signal` is aborted first; the work goes on for whoever else waits for it. */
function unless(signal, work) {
  if (!signal) return work();
  signal.throwIfAborted();
  let stop;
  const stopped = new Promise((_, reject) => {
    stop = () => reject(signal.reason);
    signal.addEventListener("abort", stop);
  });
  return Promise.race([work(), stopped]).finally(() => signal.removeEventListener("abort", stop));
}
