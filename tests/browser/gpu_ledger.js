// Put before worker.js by test_memory.py: counts what is made, destroyed and run on the GPU, below everything of ours.
// Every destruction is also told on a channel, since a closed client's worker is gone.
{
  const ledger = {
    created: {}, // calls of each create method
    sizes: [], // bytes of each buffer, in order
    destroyedBuffers: 0,
    destroyedBytes: 0,
    destroyedDevices: 0,
    submits: 0,
    readBacks: 0,
    waits: 0, // for the queue to be done
    writes: 0,
    writtenBytes: 0,
    dispatches: 0,
    strangeDispatches: 0, // not made by the loop of replay.mjs
    errors: [],
  };
  self.gpuLedger = ledger;
  const channel = new BroadcastChannel("gpu-ledger");
  const wrap = (kind, name, act) => {
    const original = kind.prototype[name];
    kind.prototype[name] = function (...args) {
      const result = original.apply(this, args);
      act(this, args, result);
      return result;
    };
  };
  const makers = ["createBuffer", "createTexture", "createShaderModule", "createComputePipeline", "createRenderPipeline",
    "createComputePipelineAsync", "createRenderPipelineAsync", "createBindGroup", "createBindGroupLayout",
    "createPipelineLayout", "createQuerySet", "createSampler"];
  for (const name of makers) {
    ledger.created[name] = 0;
    wrap(GPUDevice, name, () => { ledger.created[name] += 1; });
  }
  wrap(GPUDevice, "createBuffer", (device, [descriptor]) => ledger.sizes.push(descriptor.size));
  wrap(GPUBuffer, "destroy", (buffer) => {
    ledger.destroyedBuffers += 1;
    ledger.destroyedBytes += buffer.size;
    channel.postMessage(ledger);
  });
  wrap(GPUDevice, "destroy", () => {
    ledger.destroyedDevices += 1;
    channel.postMessage(ledger);
  });
  wrap(GPUAdapter, "requestDevice", (adapter, args, promise) => {
    const listen = (device) => {
      device.addEventListener("uncapturederror", ({ error }) => ledger.errors.push(error.message));
    };
    promise.then(listen, () => {});
  });
  wrap(GPUQueue, "submit", () => { ledger.submits += 1; });
  wrap(GPUQueue, "onSubmittedWorkDone", () => { ledger.waits += 1; });
  wrap(GPUBuffer, "mapAsync", () => { ledger.readBacks += 1; });
  wrap(GPUQueue, "writeBuffer", (queue, [, , data, first = 0, size = data.byteLength - first]) => {
    ledger.writes += 1;
    ledger.writtenBytes += size;
  });
  wrap(GPUComputePassEncoder, "dispatchWorkgroups", () => {
    ledger.dispatches += 1;
    Error.stackTraceLimit = 4;
    // Message, this function, the wrapper, the caller.
    if (!new Error().stack.split("\n")[3]?.includes("/replay.mjs")) ledger.strangeDispatches += 1;
  });
  wrap(GPUComputePassEncoder, "dispatchWorkgroupsIndirect", () => { ledger.strangeDispatches += 1; });
}
