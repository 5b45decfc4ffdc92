// The module worker that holds everything: starts Python and hands over to it. Messages are those of pyapp/worker.py:
// [line of JSON, attachment or null]; until Python listens, they wait here.

import { boot, here, said } from "./boot.js";
import { ended, now, stages, timed } from "./timeline.js";

const waiting = [];
let deliver = null;

/** An answer, asked for once more where it is none: what fails so early need not fail later. */
const again = (url) => fetch(url).then((answer) => (answer.ok ? answer : fetch(url)), () => fetch(url));

// What Python asks for first is on its way while Python starts. Each answer is handed out once.
const early = new Map(["models/index.json"].map((path) => [here + path, again(here + path)]));
early.forEach((answer) => answer.catch(() => {}));
function ahead(url) {
  const answer = early.get(url);
  early.delete(url);
  return answer;
}

self.onmessage = ({ data: [line, attachment] }) => {
  if (deliver) deliver(line, attachment ?? undefined);
  else waiting.push([line, attachment]);
};

const send = (message) => self.postMessage([JSON.stringify(message), null]);

async function start() {
  ended("worker script", performance.timeOrigin, now(), ["page"]);
  const pyodide = await boot((progress) => send({ progress }));
  const post = (line, attachment) =>
    attachment ? self.postMessage([line, attachment], [attachment.buffer]) : self.postMessage([line, null]);
  await timed("NumPy imported", ["modules unpacked"], () => pyodide.pyimport("numpy").destroy());
  const worker = await timed("modules imported", ["NumPy imported"], () => pyodide.pyimport("pyapp.worker"));
  deliver = worker.start(post, JSON.stringify(stages), now(), ahead);
  worker.destroy();
  send({ booted: true });
  for (const [line, attachment] of waiting.splice(0)) deliver(line, attachment ?? undefined);
}

start().catch((error) => send({ dead: said(error) }));
