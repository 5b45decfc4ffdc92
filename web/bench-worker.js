// The module worker of the bench of sharing: starts Python, which measures. In: {query}, an object of texts.
// Out: {row} for each row, then {done: true} whatever happens.

import { boot, here, said } from "./boot.js";

self.onmessage = async ({ data: { query } }) => {
  const post = (line) => self.postMessage({ row: JSON.parse(line) });
  try {
    const pyodide = await boot();
    const sharing = pyodide.pyimport("pyapp.bench.sharing");
    await sharing.run(JSON.stringify(query), here, post);
  } catch (error) {
    self.postMessage({ row: { bench: "sharing", error: said(error) } });
  } finally {
    self.postMessage({ done: true });
  }
};
