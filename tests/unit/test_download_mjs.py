"""The downloads of ``opfs.mjs``: a server that falls silent, before its answer or in the middle of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.node_runner import run_node

DOWNLOAD = """
  const { download } = await import(new URL("../pyapp/weights/opfs.mjs", web).href);
  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  let aborted = false;
  globalThis.fetch = async (url, options) => {
    options.signal.addEventListener("abort", () => { aborted = true; });
    if (input.answerAfter === null) await new Promise(() => {});
    await pause(input.answerAfter);
    let at = 0;
    return new Response(new ReadableStream({
      async pull(stream) {
        if (at === input.pieces) return input.ends ? stream.close() : new Promise(() => {});
        await pause(input.every);
        at += 1;
        stream.enqueue(new Uint8Array(10));
      },
    }, { highWaterMark: 0 }));
  };
  const got = download("http://x/", -1, -1, "default", 200);
  try {
    await got.open();
    let size = 0;
    for (let part = await got.next(15); part !== null; part = await got.next(15)) size += part.length;
    return { size, aborted };
  } catch (error) {
    return { message: error.message, plain: error.constructor === Error, aborted };
  }
"""


def download(**script: Any) -> Any:
    return run_node(DOWNLOAD, {"answerAfter": 0, "every": 0, "pieces": 3, "ends": True, **script})


@pytest.mark.parametrize("script", [{"answerAfter": None}, {"ends": False}, {"pieces": 0, "ends": False}])
def test_silence_ends_the_request(script: dict[str, Any]) -> None:
    said = "TimeoutError: nothing came for 0.2 seconds"
    assert download(**script) == {"message": said, "plain": True, "aborted": True}


@pytest.mark.parametrize("script", [{}, {"answerAfter": 90}, {"every": 60, "pieces": 6}, {"pieces": 0}])
def test_slow_is_not_silent(script: dict[str, Any]) -> None:
    """Each wait has its own time, however long all of them take together."""
    assert download(**script) == {"size": 10 * script.get("pieces", 3), "aborted": False}
