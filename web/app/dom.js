// Small helpers to build and find elements. No framework: the page is a handful of parts that draw themselves.

/**
 * Build an element. `kind` is a tag with optional classes ("button.primary.small"); a prop that is a function is a
 * listener ("onclick"), true is an empty attribute, null and false are left out. Children are nodes or strings.
 */
export function h(kind, props = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** An icon from icons/<name>.svg, painted in the colour of the text around it and silent for screen readers. */
export function icon(name) {
  return h(`span.icon.icon-${name}`, { "aria-hidden": "true" });
}

/** Run `draw` at most once a frame, with the arguments of the last call. */
export function oncePerFrame(draw) {
  let waiting = false;
  let latest = [];
  return (...values) => {
    latest = values;
    if (waiting) return;
    waiting = true;
    // A hidden tab gets no frames; the timer keeps its state true (and its tests quick) all the same.
    const run = () => {
      if (!waiting) return;
      waiting = false;
      draw(...latest);
    };
    requestAnimationFrame(run);
    setTimeout(run, 250);
  };
}
