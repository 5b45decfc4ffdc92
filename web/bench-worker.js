// The module worker of the benches that Python runs by itself, below the door. In: {which, query}: a module of
// pyapp.bench, and an object of texts for it. Out: {row} for each row, then {done: true} whatever happens.

import { boot, here, said } from "./boot.js";

self.onmessage = async ({ data: { which, query } }) => {
  const post = (line) => self.postMessage({ row: JSON.parse(line) });
  try {
    const pyodide = await boot();
    const bench = pyodide.pyimport(`pyapp.bench.${which}`);
    await bench.run(JSON.stringify(query), here, post);
  } catch (error) {
    self.postMessage({ row: { bench: which, error: said(error) } });
  } finally {
    self.postMessage({ done: true });
  }
};
