// The token that a gateway with shops asks for, without Python: by the rules of pyapp/routing/access_token.py.

import { failed, object, refusal } from "./cloud-reader.js";

const TOKEN = /^[A-Za-z0-9._~+/-]{1,4096}=*$/;
const ASK_MS = 10_000;
const EARLY_MS = 15_000; // a token is given up that long before its end, or a fifth of its time where that is less
const EARLY_SHARE = 0.2;

/**
 * A `fetch` for the stream at `cloud` that carries the token of the shop with the key `site`, asked for from a page of the
 * origin `ancestor`. A token that is refused (401) is replaced and the request sent once more.
 */
export function fetchForShop(cloud, site, ancestor) {
  const address = new URL("token", cloud).href;
  let kept = null;
  let asking = null;
  const token = async () => {
    if (kept !== null && performance.now() < kept.until) return kept;
    asking ??= ask(address, { site, ancestor }).finally(() => (asking = null));
    return (kept = await asking);
  };
  return async (url, init) => {
    const send = async () => {
      const used = await unless(init.signal, token);
      const headers = { ...init.headers, authorization: `Bearer ${used.token}` };
      return [used, await fetch(url, { ...init, headers })];
    };
    const [used, response] = await send();
    if (response.status !== 401) return response;
    await response.body?.cancel();
    if (kept === used) kept = null;
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
  signal.throwIfAborted();
  let stop;
  const stopped = new Promise((_, reject) => {
    stop = () => reject(signal.reason);
    signal.addEventListener("abort", stop);
  });
  return Promise.race([work(), stopped]).finally(() => signal.removeEventListener("abort", stop));
}
