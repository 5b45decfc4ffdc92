// Put before worker.js by the soak: counts bytes of buffers asked of the GPU and destroyed, below everything of ours.
// Every destruction is also told on a channel, since a closed client's worker is gone.
{
  const ledger = { buffers: 0, bytes: 0, asked: 0 };
  self.soakLedger = ledger;
  const channel = new BroadcastChannel("soak-ledger");
  const here = new WeakSet();
  const { createBuffer } = GPUDevice.prototype;
  const { destroy } = GPUBuffer.prototype;
  GPUDevice.prototype.createBuffer = function (descriptor) {
    const buffer = createBuffer.call(this, descriptor);
    here.add(buffer);
    ledger.buffers += 1;
    ledger.bytes += buffer.size;
    ledger.asked += buffer.size;
    return buffer;
  };
  GPUBuffer.prototype.destroy = function () {
    destroy.call(this);
    if (!here.delete(this)) return;
    ledger.buffers -= 1;
    ledger.bytes -= this.size;
    channel.postMessage(ledger);
  };
}
