// Replays a recorded plan: what Python would otherwise do a dispatch at a time, in one call a submit.
// Every object here (device, pipelines, bind groups, buffers) was made by Python; this file only encodes and reads back.

/** Columns of the table, one row a dispatch. */
const PIPELINE = 0, GROUP = 1, X = 2, Y = 3, Z = 4, PER_TILE = 5, WIDTH = 6;

/**
 * @param {GPUDevice} device
 * @param {GPUComputePipeline[]} pipelines  @param {GPUBindGroup[]} groups
 * @param {Int32Array} table  rows of [pipeline, group, x, y, z, y per token tile or 0]
 */
export function record(device, pipelines, groups, table) {
  return { device, pipelines, groups: [...groups], table: Int32Array.from(table), pace: 0 };
}

/**
 * The bind groups of a plan.
 * @param {GPUBindGroupLayout[]} layouts  @param {GPUBuffer[]} buffers
 * @param {number[]} bindings  of each group: layout, number of bindings, then [slot, buffer, offset, size] of each
 */
export function bindGroups(device, layouts, buffers, bindings) {
  const groups = [];
  let at = 0;
  while (at < bindings.length) {
    const layout = layouts[bindings[at]];
    const end = at + 2 + 4 * bindings[at + 1];
    const entries = [];
    for (at += 2; at < end; at += 4) {
      const [binding, buffer, offset, size] = bindings.slice(at, at + 4);
      entries.push({ binding, resource: { buffer: buffers[buffer], offset, size } });
    }
    groups.push(device.createBindGroup({ layout, entries }));
  }
  return groups;
}

/** When each device was last seen to have finished something: submits end in order, so the next began no sooner. */
const lastDone = new WeakMap();

const GRAIN = 0.1; // ms of the clock: less than that says that it was less

/**
 * Notes in `recorded.pace` how many seconds a unit of `work` takes, once `done`. Submits whose ends are heard together,
 * since Python was busy, look as if the later ones had taken no time: a pace gets no more than twice as fast at once.
 */
function measure(recorded, work, done) {
  const began = performance.now();
  done.then(() => {
    const now = performance.now();
    const span = Math.max(GRAIN, now - Math.max(began, lastDone.get(recorded.device) ?? 0));
    recorded.pace = Math.max(span / 1000 / work, recorded.pace / 2);
    lastDone.set(recorded.device, now);
  }, () => {});
}

/** Encodes spans of the plan, `repeat` times over, into a pass, and ends it. */
function encode(pass, recorded, spans, tiles, repeat) {
  for (let i = 0; i < repeat; i++) {
    for (let s = 0; s < spans.length; s += 2) encodeSpan(pass, recorded, spans[s], spans[s + 1], tiles);
  }
  pass.end();
}

function encodeSpan(pass, recorded, from, to, tiles) {
  const { pipelines, groups, table } = recorded;
  let current = -1;
  for (let row = from * WIDTH; row < to * WIDTH; row += WIDTH) {
    if (table[row + PIPELINE] !== current) {
      current = table[row + PIPELINE];
      pass.setPipeline(pipelines[current]);
    }
    pass.setBindGroup(0, groups[table[row + GROUP]]);
    const perTile = table[row + PER_TILE];
    pass.dispatchWorkgroups(table[row + X], perTile ? perTile * tiles : table[row + Y], table[row + Z]);
  }
}

/** A promise whose rejection never counts as unhandled: the caller may have given up waiting. */
function quiet(promise) {
  promise.catch(() => {});
  return promise;
}

async function take(staging, size) {
  try {
    await staging.mapAsync(1, 0, size);
  } catch (error) {
    throw new Error(`${error.name}: ${error.message}`);
  }
  const bytes = new Uint8Array(staging.getMappedRange(0, size)).slice();
  staging.unmap();
  return bytes;
}

/**
 * Submits spans of the plan, `repeat` times over in one pass, then a copy of [source, offset, size] to `staging`.
 * @param {Int32Array} spans  pairs of [from, to) rows
 * @param {number} work  units of work in all of it, to be measured; 0: not to be
 * @param {ReturnType<typeof ranges>} [cleared]  over which zeros are written at the end
 * @returns {Promise<Uint8Array> | undefined}  the copied bytes, once the GPU is done; nothing without a staging buffer
 */
export function submit(recorded, spans, tiles, repeat, source, offset, size, staging, work, cleared = null) {
  const encoder = recorded.device.createCommandEncoder();
  encode(encoder.beginComputePass(), recorded, spans, tiles, repeat);
  if (staging) encoder.copyBufferToBuffer(source, offset, staging, 0, size);
  if (cleared) zero(encoder, cleared);
  recorded.device.queue.submit([encoder.finish()]);
  const copied = staging ? quiet(take(staging, size)) : undefined;
  if (work) measure(recorded, work, copied ?? recorded.device.queue.onSubmittedWorkDone());
  return copied;
}

/**
 * Submits spans as `submit` does, in a pass that the GPU's clock is read at both ends of.
 * @param {GPUQuerySet} queries  two timestamps  @param {GPUBuffer} resolved, staging  16 bytes or more each
 * @returns {Promise<Uint8Array>}  the two, as 64-bit nanoseconds, once the GPU is done
 */
export function timed(recorded, spans, tiles, repeat, queries, resolved, staging) {
  const encoder = recorded.device.createCommandEncoder();
  const timestampWrites = { querySet: queries, beginningOfPassWriteIndex: 0, endOfPassWriteIndex: 1 };
  encode(encoder.beginComputePass({ timestampWrites }), recorded, spans, tiles, repeat);
  encoder.resolveQuerySet(queries, 0, 2, resolved, 0);
  encoder.copyBufferToBuffer(resolved, 0, staging, 0, 16);
  recorded.device.queue.submit([encoder.finish()]);
  return quiet(take(staging, 16));
}

/** Copies a range of a buffer out, without running anything. */
export function readBack(device, source, offset, size, staging) {
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(source, offset, staging, 0, size);
  device.queue.submit([encoder.finish()]);
  return quiet(take(staging, size));
}

/** Writes `nbytes` of Python's heap, which `module` has, from `address` on. */
export function write(queue, buffer, offset, module, address, nbytes) {
  queue.writeBuffer(buffer, offset, module.HEAPU8.subarray(address, address + nbytes));
}

/** Ranges that zeros are written over together, noted once: triples of buffer index, offset, size or nothing. */
export function ranges(buffers, triples) {
  return { buffers: [...buffers], triples: [...triples] };
}

/** Zeros over each of the ranges; over `nbytes` where it has no size of its own. */
function zero(encoder, { buffers, triples }, nbytes = 0) {
  for (let i = 0; i < triples.length; i += 3) {
    encoder.clearBuffer(buffers[triples[i]], triples[i + 1], triples[i + 2] ?? nbytes);
  }
}

/** Writes zeros over ranges, in one submit. */
export function clear(device, cleared, nbytes) {
  const encoder = device.createCommandEncoder();
  zero(encoder, cleared, nbytes);
  device.queue.submit([encoder.finish()]);
}

/**
 * Calls `hear(number, value, "")` once `promise` is kept and `hear(number, null, what it said)` once it is broken.
 * Python that awaits the promise itself makes four objects and a task of it, which takes longer than many a kernel.
 */
export function tell(promise, hear, number) {
  promise.then((value) => hear(number, value, ""), (error) => hear(number, null, String(error)));
}

const HASTE_MS = 8; // what takes longer does not mind a millisecond
const HASTE_GRAIN_MS = 0.1;

const turns = [];
let port = null;

/** Calls `act` in a turn of its own of the event loop, without the milliseconds that a timer waits at least. */
function inTurn(act) {
  if (!port) {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => turns.shift()();
    port = port2;
  }
  turns.push(act);
  port.postMessage(null);
}

/**
 * Has the end of a short submit noticed when it comes. Chromium's GPU process looks whether work is done when commands
 * come, and otherwise 2 ms after the last one and then once a millisecond; so here are commands that do nothing, until
 * `promise` is kept or so much time has passed that waiting for the next look makes no difference.
 */
export function hasten(device, promise) {
  let waiting = true;
  const over = () => {
    waiting = false;
  };
  promise.then(over, over);
  let last = performance.now();
  const ends = last + HASTE_MS;
  const look = () => {
    const now = performance.now();
    if (!waiting || now >= ends) return;
    if (now - last >= HASTE_GRAIN_MS) {
      device.queue.submit([]);
      last = now;
    }
    inTurn(look);
  };
  inTurn(look);
}
