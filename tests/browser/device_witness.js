// Put before worker.js by test_loss.py and test_tabs.py: keeps the devices at hand for a test that destroys one, and
// counts whether two tabs ever have GPU buffers at a time. For that it holds a Web Lock of its own while any buffer
// lives: the browser serves the locks of all tabs in one order.
{
  const devices = (self.testDevices = []);
  const witness = (self.poolWitness = { conflicts: 0, pools: 0, live: 0 });
  let free = null;

  const request = GPUAdapter.prototype.requestDevice;
  GPUAdapter.prototype.requestDevice = async function (...args) {
    const device = await request.apply(this, args);
    devices.push(device);
    return device;
  };

  const create = GPUDevice.prototype.createBuffer;
  GPUDevice.prototype.createBuffer = function (descriptor) {
    const buffer = create.call(this, descriptor);
    if (witness.live === 0) {
      witness.pools += 1;
      const hold = (lock) => {
        if (!lock) witness.conflicts += 1;
        return new Promise((resolve) => { free = resolve; });
      };
      navigator.locks.request("pool-witness", { ifAvailable: true }, hold);
    }
    witness.live += descriptor.size;
    return buffer;
  };

  const destroy = GPUBuffer.prototype.destroy;
  GPUBuffer.prototype.destroy = function () {
    destroy.call(this);
    witness.live -= this.size;
    if (witness.live === 0) free?.();
  };
}
