// Reads a stored file, and hashes it, ahead of who will want it: in a worker of its own, since Python keeps the one that
// it runs in busy with other work meanwhile (opfs.mjs has the other end).
//
// In: {folder, name, piece, segment, hold} once, then {taken: bytes}, then perhaps {close: true}.
// Out: {opened: true}, {at, bytes, hashes} of each piece, whatever order they are hashed in, then {end: true}.
// Whatever is not read here is read where it is wanted, and what is wrong with it shows there.

import { openFolder, sha256Each } from "./opfs.mjs";

/** Pieces that are hashed while the next one is read. */
const HASHING = 3;

let held = 0;
let closed = false;
let awake = () => {};

function stop() {
  closed = true;
  awake();
}

async function send(at, bytes, segment) {
  const hashes = await sha256Each(bytes, segment).catch(() => null);
  if (hashes === null) stop();
  else self.postMessage({ at, bytes, hashes }, [bytes.buffer]);
}

async function run({ folder, name, piece, segment, hold }) {
  const file = await (await openFolder(folder)).open(name, false);
  if (!file) return;
  self.postMessage({ opened: true });
  const hashing = [];
  try {
    const size = file.size();
    for (let at = 0; at < size; at += piece) {
      while (held >= hold && !closed) await new Promise((resolve) => (awake = resolve));
      if (closed) break;
      const bytes = file.read(at, Math.min(piece, size - at));
      held += bytes.length;
      hashing.push(send(at, bytes, segment));
      if (hashing.length >= HASHING) await hashing.shift();
    }
  } finally {
    file.close();
    await Promise.all(hashing);
  }
}

self.onmessage = ({ data }) => {
  if (data.folder) {
    run(data).catch(() => {}).finally(() => self.postMessage({ end: true }));
    return;
  }
  held -= data.taken ?? 0;
  if (data.close) stop();
  else awake();
};
