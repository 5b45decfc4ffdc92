// Who embeds us, and how to speak to that page alone.

/**
 * The embedding page's exact origin, or null where there is none or it is not the one that embed.js named. Where the
 * browser tells the origins of the frames above (all but Firefox), the name must agree with it.
 */
export function parentOrigin(frame = window) {
  if (frame.parent === frame) return null;
  const named = new URLSearchParams(frame.location.search).get("parent");
  const above = frame.location.ancestorOrigins?.[0];
  if (above !== undefined && above !== named) return null;
  try {
    const { origin, protocol } = new URL(named);
    return origin === named && /^https?:$/.test(protocol) ? origin : null;
  } catch {
    return null;
  }
}

/** `post(type, detail)` to the parent, if it is of that origin; silent where there is no parent to speak to. */
export function postTo(origin, frame = window) {
  return (type, detail) => {
    if (origin) frame.parent.postMessage({ tandem: 1, type, detail }, origin);
  };
}
