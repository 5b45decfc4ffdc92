// Put before worker.js by the scripted visits, and run in their page: makes the browser fail as `self.fault` says, below
// everything of ours. `fault.kind` names the failure, `fault.at` how many tokens of text are shown before it comes. The
// moment of the first failure is told on the channel "faults", in ms since 1970.
{
  const channel = new BroadcastChannel("faults");
  let told = null; // the fault of which that was done
  const strike = () => {
    if (told !== self.fault) channel.postMessage(performance.timeOrigin + performance.now());
    told = self.fault;
  };
  const is = (...kinds) => kinds.includes(self.fault?.kind);
  const refused = (what) => Promise.reject(new DOMException(`${what} was refused`, "OperationError"));
  const never = () => new Promise(() => {});
  let struck = false; // whether the moment in the middle of the text has come
  let devices = [];

  /** `act(original, ...arguments)` in the place of a method, with the same `this`. */
  const replace = (type, name, act) => {
    const original = type.prototype[name];
    type.prototype[name] = function (...args) {
      return act.call(this, (...passed) => original.apply(this, passed), ...args);
    };
  };
  const replaceGetter = (type, name, act) => {
    const { get } = Object.getOwnPropertyDescriptor(type.prototype, name);
    const getter = function () { return act(() => get.call(this)); };
    Object.defineProperty(type.prototype, name, { configurable: true, get: getter });
  };

  // -- no GPU, or too small a one --
  replaceGetter(self.WorkerNavigator ?? self.Navigator, "gpu", (original) => {
    if (!is("no_webgpu")) return original();
    strike();
    return undefined;
  });
  replace(GPU, "requestAdapter", (original, ...args) => {
    if (is("adapter_refused")) return strike(), refused("An adapter");
    if (is("no_adapter")) return strike(), Promise.resolve(null);
    if (is("no_second_adapter") && devices.length > 0) return Promise.resolve(null);
    return original(...args);
  });
  replaceGetter(GPUAdapter, "limits", (original) => {
    if (!is("small_limits")) return original();
    strike();
    const small = { maxBufferSize: 16384, maxStorageBufferBindingSize: 16384 };
    return new Proxy(original(), { get: (limits, name) => small[name] ?? limits[name] });
  });
  replace(GPUAdapter, "requestDevice", async (original, ...args) => {
    if (is("device_refused")) return strike(), refused("A device");
    const device = await original(...args);
    devices.push(device);
    return device;
  });

  // -- memory that runs out: the buffer is invalid, and only an error scope says so --
  const scopes = new WeakMap();
  const scopesOf = (device) => scopes.get(device) ?? scopes.set(device, []).get(device);
  replace(GPUDevice, "pushErrorScope", function (original, filter) {
    scopesOf(this).push({ filter, error: null });
    original(filter);
  });
  replace(GPUDevice, "popErrorScope", async function (original) {
    const scope = scopesOf(this).pop();
    const error = await original();
    return scope?.error ?? error;
  });
  replace(GPUDevice, "createBuffer", function (original, descriptor) {
    if (!is("out_of_memory") || !descriptor.label?.includes("slab")) return original(descriptor);
    strike();
    const scope = scopesOf(this).findLast(({ filter }) => filter === "out-of-memory");
    if (scope) scope.error = new GPUOutOfMemoryError("not enough memory left");
    this.pushErrorScope("validation");
    const invalid = original({ ...descriptor, size: 2 ** 50 });
    this.popErrorScope();
    return invalid;
  });

  // -- kernels: one that does not compile, one that computes something else --
  replace(GPUDevice, "createShaderModule", (original, descriptor) => {
    let { code } = descriptor;
    if (is("broken_shader")) code += "\nfn broken(";
    if (is("wrong_result")) code = code.replace(/inverseSqrt\(/g, "2.0 * inverseSqrt(");
    if (code !== descriptor.code) strike();
    return original({ ...descriptor, code });
  });

  // -- in the middle of a text --
  replace(GPUBuffer, "mapAsync", (original, ...args) => {
    if (struck && is("stall")) return never();
    if (struck && is("read_refused")) return refused("Reading a buffer");
    return original(...args);
  });
  replace(GPUQueue, "onSubmittedWorkDone", (original) => (struck && is("stall") ? never() : original()));
  const acts = {
    loss: () => devices.at(-1).destroy(),
    no_second_adapter: () => devices.at(-1).destroy(),
    refused_call: () => devices.at(-1).createBuffer({ size: 4, usage: 0 }),
    worker_dies: () => setTimeout(() => { throw new Error("the runtime broke down"); }),
    stall: () => {},
    read_refused: () => {},
  };
  let tokens = 0;
  const post = self.postMessage;
  const isPiece = ([line]) => line.includes('"type": "text"') && line.includes('"source": "device"');
  if (self.WorkerNavigator) {
    self.postMessage = (message, ...rest) => {
      post.call(self, message, ...rest);
      if (struck || !acts[self.fault?.kind] || !isPiece(message)) return;
      tokens += JSON.parse(message[0]).event.tokens;
      if (tokens < self.fault.at) return;
      struck = true;
      strike();
      acts[self.fault.kind]();
    };
    if (is("no_python")) {
      strike();
      throw new Error("the runtime cannot start");
    }
  }
}
