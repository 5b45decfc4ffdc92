// Event streams as the HTML standard reads them, in as few lines as that takes; pyapp/routing/sse.py is the whole of it.

import { TandemError } from "./tandem-error.js";

const LINE_LIMIT = 1 << 20;

/** A function from chunks of bytes to the data of the events that they complete (the HTML standard's event streams). */
export function eventParser() {
  const decoder = new TextDecoder(); // takes a BOM away, and holds back half a character
  let rest = "";
  let data = [];
  return (bytes, last) => {
    const events = [];
    rest += decoder.decode(bytes ?? new Uint8Array(), { stream: !last });
    // A CR at the end may be half of a CR LF: it waits, except at the very end, where an open event counts as whole.
    const lines = (last ? rest + "\n\n" : rest).split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (data.length) events.push(data.join("\n"));
        data = [];
      } else if (line === "data" || line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
    }
    if (rest.length + data.reduce((sum, line) => sum + line.length, 0) > LINE_LIMIT) {
      throw new TandemError("cloud_unavailable", "The cloud sent an event without an end; try again.");
    }
    return events;
  };
}
