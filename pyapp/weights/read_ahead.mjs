// Reads a stored file, and hashes it, ahead of who will want it: in a worker of its own, since Python keeps the one that
// it runs in busy with other work meanwhile (opfs.mjs has the other end).
//
// In: {folder, name, piece, segment, hold} once, then {taken: bytes}, then perhaps {close: true}.
// Out: {at, bytes, hashes} of each piece, whatever order they are hashed in, then {end: true}.

import { sha256Each } from "./opfs.mjs";

/** Pieces that are hashed while the next one is read. */
const HASHING = 3;

let held = 0;
let closed = false;
let awake = () => {};

/** The file, for reading beside others. An older browser knows no such thing: its handle would keep everyone out. */
async function open(folder, name) {
  const root = await navigator.storage.getDirectory();
  const entry = await (await root.getDirectoryHandle(folder)).getFileHandle(name);
  let known = false;
  const mode = {
    get mode() {
      known = true;
      return "read-only";
    },
  };
  const handle = await entry.createSyncAccessHandle(mode);
  if (known) return handle;
  handle.close();
  throw new Error("files cannot be read side by side here");
}

async function send(at, bytes, segment) {
  const hashes = await sha256Each(bytes, segment);
  if (hashes !== null) self.postMessage({ at, bytes, hashes }, [bytes.buffer]);
}

async function run({ folder, name, piece, segment, hold }) {
  const handle = await open(folder, name);
  try {
    const size = handle.getSize();
    const hashing = [];
    for (let at = 0; at < size && !closed; at += piece) {
      while (held >= hold && !closed) await new Promise((resolve) => (awake = resolve));
      if (closed) break;
      const bytes = new Uint8Array(Math.min(piece, size - at));
      if (handle.read(bytes, { at }) !== bytes.length) break;
      held += bytes.length;
      hashing.push(send(at, bytes, segment));
      if (hashing.length >= HASHING) await hashing.shift();
    }
    await Promise.all(hashing);
  } finally {
    handle.close();
  }
}

self.onmessage = ({ data }) => {
  if (data.folder) {
    // Whatever is not read here is read where it is wanted, and what is wrong with it shows there.
    run(data).catch(() => {}).finally(() => self.postMessage({ end: true }));
    return;
  }
  held -= data.taken ?? 0;
  closed ||= Boolean(data.close);
  awake();
};
