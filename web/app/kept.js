// What the store (pyapp/weights) has kept of a model in this browser, read from its folder without touching it.

const FOLDER = "tandem-v1"; // as in pyapp/weights/browser.py

async function sha256(text) {
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The store's name for the content of a manifest, or for what lies at an address. */
export async function storeKey({ manifest, url }) {
  return (manifest ? manifest.sha256 : await sha256(url)).slice(0, 32);
}

/**
 * How many of a model's `bytes` are still to be downloaded: 0 where it is kept, `bytes` where nothing is, or where
 * this page may not look (a third party's iframe, an insecure address).
 */
export async function missingBytes(key, bytes) {
  try {
    const folder = await (await navigator.storage.getDirectory()).getDirectoryHandle(FOLDER);
    const names = new Set();
    for await (const name of folder.keys()) names.add(name);
    const packed = [...names].some((name) => {
      const stem = name.startsWith(`${key}.pack-`) && name.endsWith(".index") ? name.slice(0, -".index".length) : null;
      return stem && names.has(`${stem}.packed`);
    });
    if (packed) return 0;
    const file = await (await folder.getFileHandle(`${key}.state`)).getFile();
    const { size, chunk_bytes: chunk, stored } = JSON.parse(await file.text());
    const here = stored.reduce((sum, index) => sum + Math.min(chunk, size - index * chunk), 0);
    return Math.max(0, size - here);
  } catch {
    return bytes;
  }
}
