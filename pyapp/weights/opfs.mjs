// What the store needs of the browser and cannot do from Python: OPFS, hashes and downloads, on arrays that stay in
// JavaScript. The worker registers this module as `tandem_opfs`.
//
// Pyodide never comes back from an awaited rejection with a QuotaExceededError, so nothing here lets a DOMException
// out: every failure is a plain Error whose message begins with the name, "QuotaExceededError: …".

const plain = (error) => new Error(`${error?.name ?? "Error"}: ${error?.message ?? error}`);

async function guarded(work) {
  try {
    return await work();
  } catch (error) {
    throw plain(error);
  }
}

function checked(work) {
  try {
    return work();
  } catch (error) {
    throw plain(error);
  }
}

/** One open file: a sync access handle with short reads and writes turned into errors. */
class OpfsFile {
  #handle;

  constructor(handle) {
    this.#handle = handle;
  }

  size() {
    return checked(() => this.#handle.getSize());
  }

  read(offset, length) {
    return checked(() => {
      const bytes = new Uint8Array(length);
      const count = this.#handle.read(bytes, { at: offset });
      if (count !== length) throw new DOMException(`${count} of ${length} bytes at ${offset}`, "NotReadableError");
      return bytes;
    });
  }

  write(offset, bytes) {
    checked(() => {
      // In a private window a write past the quota does not throw, it returns 4294967288.
      const count = this.#handle.write(bytes, { at: offset });
      if (count !== bytes.length) throw new DOMException(`${count} of ${bytes.length} bytes`, "QuotaExceededError");
    });
  }

  truncate(size) {
    checked(() => {
      this.#handle.truncate(size);
      if (this.#handle.getSize() !== size) throw new DOMException(`no room for ${size} bytes`, "QuotaExceededError");
    });
  }

  flush() {
    checked(() => this.#handle.flush());
  }

  close() {
    this.#handle.close();
  }
}

/** Whether files can be open for reading side by side: known once one was opened. An older browser knows no `mode`. */
let shared = false;

const modeOf = (write) => ({
  get mode() {
    shared = true;
    return write ? "readwrite" : "read-only";
  },
});

/** A flat folder of OPFS. */
class OpfsFolder {
  #folder;

  constructor(folder) {
    this.#folder = folder;
  }

  /** The file, null where it does not exist and `write` is false. */
  open(name, write) {
    return guarded(async () => {
      let entry;
      try {
        entry = await this.#folder.getFileHandle(name, { create: write });
      } catch (error) {
        if (error.name === "NotFoundError" && !write) return null;
        throw error;
      }
      return new OpfsFile(await entry.createSyncAccessHandle(modeOf(write)));
    });
  }

  remove(name) {
    return guarded(() =>
      this.#folder.removeEntry(name).catch((error) => {
        if (error.name !== "NotFoundError") throw error;
      }),
    );
  }

  names() {
    return guarded(async () => {
      const names = [];
      for await (const name of this.#folder.keys()) names.push(name);
      return names;
    });
  }
}

/** The folder `name`; rejects where there is no OPFS with sync access (third-party frames, plain http, old browsers). */
export function openFolder(name) {
  return guarded(async () => {
    const root = await navigator.storage.getDirectory();
    if (!globalThis.FileSystemFileHandle?.prototype.createSyncAccessHandle) throw new Error("no sync access");
    return new OpfsFolder(await root.getDirectoryHandle(name, { create: true }));
  });
}

/** SHA-256 of a Uint8Array, hexadecimal; null where there is no crypto.subtle (plain http). */
export async function sha256(bytes) {
  if (!globalThis.crypto?.subtle) return null;
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The same of each `size` bytes, with blanks between: one crossing into Python, and the browser hashes side by side. */
export async function sha256Each(bytes, size) {
  const hashes = [];
  for (let at = 0; at < bytes.length; at += size) hashes.push(sha256(bytes.subarray(at, at + size)));
  const all = await Promise.all(hashes);
  return all.includes(null) ? null : all.join(" ");
}

/** Of one file, how many bytes may wait to be taken: few where there is little memory, or nobody says. */
const AHEAD_BYTES = (globalThis.navigator?.deviceMemory >= 8 ? 128 : 32) << 20;
/** A page that comes and goes lets go of what was read for nobody after so long. */
const AHEAD_MS = 20_000;
/** Who asks for a piece waits so long for a worker that has not opened the file: it lies here to be read. */
const START_MS = 300;
/** A worker that does not let go of the file is ended. */
const CLOSE_MS = 1_000;

/** A stored file that another worker reads and hashes from its beginning, in pieces (read_ahead.mjs). */
class ReadAhead {
  #worker;
  #piece;
  #hold;
  #pieces = new Map();
  #waiting = new Map();
  #seen = new Set();
  #held = 0;
  #ended = false;
  #closed = null;
  #told = () => {};
  #timer = null;
  #opened = false;
  #starting = null;

  constructor(order) {
    this.#piece = order.piece;
    this.#hold = order.hold;
    this.#worker = new Worker(new URL("./read_ahead.mjs", import.meta.url), { type: "module" });
    this.#worker.onmessage = ({ data }) => this.#hear(data);
    this.#worker.onmessageerror = () => this.#end();
    this.#worker.onerror = (event) => {
      event.preventDefault();
      this.#end();
    };
    this.#worker.postMessage(order);
    this.#touch();
  }

  #hear(data) {
    if (data.opened) {
      this.#opened = true;
      clearTimeout(this.#starting);
    } else if (data.end) this.#end();
    else this.#keep(data);
  }

  /** {bytes, hashes} of the piece at `offset`; null where that is not to be had, or not any more, and nothing is then. */
  async take(offset, length) {
    this.#touch();
    const piece = this.#kept(offset) ?? (await this.#coming(offset));
    if (piece?.bytes.length !== length) {
      this.close(); // who asks for something else will do so again, and nobody would make room
      return null;
    }
    this.#worker.postMessage({ taken: length });
    return piece;
  }

  #kept(offset) {
    const piece = this.#pieces.get(offset);
    this.#pieces.delete(offset);
    this.#held -= piece?.bytes.length ?? 0;
    return piece;
  }

  #coming(offset) {
    const known = this.#seen.has(offset) || this.#waiting.has(offset);
    if (this.#ended || this.#closed || offset % this.#piece || known) return null;
    if (!this.#opened) this.#starting ??= setTimeout(() => this.#end(), START_MS);
    return new Promise((resolve) => {
      this.#waiting.set(offset, resolve);
      this.#unlock();
    });
  }

  #keep(piece) {
    if (this.#closed) return;
    this.#seen.add(piece.at);
    const waiting = this.#waiting.get(piece.at);
    this.#waiting.delete(piece.at);
    if (waiting) {
      waiting(piece);
    } else {
      this.#pieces.set(piece.at, piece);
      this.#held += piece.bytes.length;
    }
    this.#unlock();
  }

  /** Where the room is full of what nobody asks for, what is asked for would never come. */
  #unlock() {
    if (this.#waiting.size && this.#held >= this.#hold) this.close();
  }

  #end() {
    this.#ended = true;
    clearTimeout(this.#starting);
    this.#worker.terminate();
    for (const resolve of this.#waiting.values()) resolve(null);
    this.#waiting.clear();
    this.#told();
  }

  /** Forgets what has come. Resolves when the file is let go of. */
  close() {
    clearTimeout(this.#timer);
    this.#pieces.clear();
    this.#closed ??= new Promise((resolve) => {
      if (this.#ended) return resolve();
      const late = setTimeout(() => this.#end(), CLOSE_MS);
      this.#told = () => {
        clearTimeout(late);
        resolve();
      };
      this.#worker.postMessage({ close: true });
    });
    return this.#closed;
  }

  #touch() {
    clearTimeout(this.#timer);
    if (!this.#closed) this.#timer = setTimeout(() => this.close(), AHEAD_MS);
  }
}

/** Begins to read a file of a folder ahead; null where nobody else can. `hold`: bytes that may wait to be taken. */
export function readAhead(folder, name, piece, segment, hold = AHEAD_BYTES) {
  if (!shared) return null;
  try {
    return new ReadAhead({ folder, name, piece, segment, hold });
  } catch {
    return null;
  }
}

export function allocate(size) {
  return checked(() => new Uint8Array(size));
}

const GATHER = 512 * 1024;
const IDLE_MS = 30_000;

/** One GET, which fails when nothing has come for `idleMs`. `open` resolves when the head of the answer is there; `next` gives its body piece by piece. */
class Download {
  status = 0;
  contentType = "";
  start = -1;
  total = -1;
  etag = "";
  #abort = new AbortController();
  #reader = null;
  #rest = null;
  #request;
  #idleMs;

  constructor(url, start, end, cache, idleMs) {
    this.#request = { url, start, end, cache };
    this.#idleMs = idleMs;
  }

  /** `work`, unless it takes too long: a connection that is dead without a word would be waited for for ever. */
  #within(work) {
    let timer;
    const late = new Promise((_, reject) => {
      timer = setTimeout(() => {
        reject(new DOMException(`nothing came for ${this.#idleMs / 1000} seconds`, "TimeoutError"));
        this.cancel();
      }, this.#idleMs);
    });
    return Promise.race([work, late]).finally(() => clearTimeout(timer));
  }

  open() {
    return guarded(async () => {
      const { url, start, end, cache } = this.#request;
      const headers = start < 0 ? {} : { Range: `bytes=${start}-${end < 0 ? "" : end - 1}` };
      const response = await this.#within(fetch(url, { headers, cache, signal: this.#abort.signal }));
      this.status = response.status;
      this.contentType = response.headers.get("content-type") ?? "";
      this.etag = response.headers.get("etag") ?? response.headers.get("last-modified") ?? "";
      const range = /^bytes (\d+)-\d+\/(\d+|\*)$/.exec(response.headers.get("content-range") ?? "");
      if (response.status === 206 && range) {
        this.start = Number(range[1]);
        this.total = range[2] === "*" ? -1 : Number(range[2]);
      } else if (response.status === 200 && !response.headers.get("content-encoding")) {
        const length = response.headers.get("content-length");
        this.total = length === null ? -1 : Number(length);
      }
      this.#reader = response.body?.getReader() ?? null;
    });
  }

  /** At most `most` bytes, gathered to save crossings into Python; null at the end. */
  next(most) {
    return guarded(async () => {
      const parts = [];
      let size = 0;
      const enough = Math.min(most, GATHER);
      while (size < enough) {
        const part = this.#rest ?? (this.#reader && (await this.#within(this.#reader.read())).value);
        this.#rest = null;
        if (!part) break;
        const taken = part.subarray(0, most - size);
        if (taken.length < part.length) this.#rest = part.subarray(taken.length);
        parts.push(taken);
        size += taken.length;
      }
      if (parts.length === 0) return null;
      if (parts.length === 1) return parts[0];
      const whole = new Uint8Array(size);
      let at = 0;
      for (const part of parts) {
        whole.set(part, at);
        at += part.length;
      }
      return whole;
    });
  }

  cancel() {
    this.#reader?.cancel().catch(() => {});
    this.#abort.abort();
  }
}

export const download = (url, start, end, cache, idleMs = IDLE_MS) => new Download(url, start, end, cache, idleMs);
