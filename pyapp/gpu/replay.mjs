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

function encode(pass, recorded, from, to, tiles) {
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
 * @returns {Promise<Uint8Array> | undefined}  the copied bytes, once the GPU is done; nothing without a staging buffer
 */
export function submit(recorded, spans, tiles, repeat, source, offset, size, staging, work) {
  const encoder = recorded.device.createCommandEncoder();
  const pass = encoder.beginComputePass();
  for (let i = 0; i < repeat; i++) {
    for (let s = 0; s < spans.length; s += 2) encode(pass, recorded, spans[s], spans[s + 1], tiles);
  }
  pass.end();
  if (staging) encoder.copyBufferToBuffer(source, offset, staging, 0, size);
  recorded.device.queue.submit([encoder.finish()]);
  const copied = staging ? quiet(take(staging, size)) : undefined;
  if (work) measure(recorded, work, copied ?? recorded.device.queue.onSubmittedWorkDone());
  return copied;
}

/** Copies a range of a buffer out, without running anything. */
export function readBack(device, source, offset, size, staging) {
  const encoder = device.createCommandEncoder();
  encoder.copyBufferToBuffer(source, offset, staging, 0, size);
  device.queue.submit([encoder.finish()]);
  return quiet(take(staging, size));
}

/** Writes zeros over ranges: triples of buffer index, offset, size. */
export function clear(device, buffers, ranges) {
  const encoder = device.createCommandEncoder();
  for (let i = 0; i < ranges.length; i += 3) encoder.clearBuffer(buffers[ranges[i]], ranges[i + 1], ranges[i + 2]);
  device.queue.submit([encoder.finish()]);
}
