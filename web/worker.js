// The module worker that holds everything: starts Python and hands over to it. Messages are those of pyapp/worker.py:
// [line of JSON, attachment or null]; until Python listens, they wait here.

import { boot, said } from "./boot.js";

const waiting = [];
let deliver = null;

self.onmessage = ({ data: [line, attachment] }) => {
  if (deliver) deliver(line, attachment ?? undefined);
  else waiting.push([line, attachment]);
};

const send = (message) => self.postMessage([JSON.stringify(message), null]);

async function start() {
  const pyodide = await boot((progress) => send({ progress }));
  const post = (line, attachment) =>
    attachment ? self.postMessage([line, attachment], [attachment.buffer]) : self.postMessage([line, null]);
  const worker = pyodide.pyimport("pyapp.worker");
  deliver = worker.start(post);
  worker.destroy();
  send({ booted: true });
  for (const [line, attachment] of waiting.splice(0)) deliver(line, attachment ?? undefined);
}

start().catch((error) => send({ dead: said(error) }));
