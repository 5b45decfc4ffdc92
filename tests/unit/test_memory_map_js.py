"""``web/app/memory/``: the parts of the memory map that need no page; layout, kinds, new moves, and when it looks."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from tests.unit.node_runner import run_node

MIB = 2**20


def call(module: str, expression: str, value: Any) -> Any:
    """What an expression of the module's exports and ``input`` gives."""
    return run_node(f"const it = await import(web + 'app/memory/{module}.js'); return {expression};", value)


def test_a_row_holds_at_most_256_kib_a_pixel_and_all_rows_are_full() -> None:
    sizes = [1, 65 * MIB, 66 * MIB, 900 * MIB]
    grids = call("layout", "input.map((size) => it.grid(size, 260))", sizes)
    assert [grid["rows"] for grid in grids] == [1, 1, 2, 14]
    assert [grid["perRow"] * grid["rows"] for grid in grids] == pytest.approx(sizes)
    assert [grid["height"] for grid in grids] == [16, 16, 35, 14 * 19 - 3]


@pytest.mark.parametrize(
    ("offset", "size", "expected"),
    [
        (0, 10, [(0, 0, 10)]),
        (95, 10, [(95, 0, 5), (0, 19, 5)]),  # from the end of one row to the beginning of the next
        (50, 250, [(50, 0, 50), (0, 19, 100), (0, 38, 100)]),
        (100, 100, [(0, 19, 100)]),  # no empty piece at the end of the row before
        (299.9, 0.1, [(99, 38, 1)]),  # a pixel at least, and not past the edge
        (290, 50, [(90, 38, 10)]),  # a span that claims more than the slab has ends with it
    ],
)
def test_pieces(offset: float, size: float, expected: list[tuple[float, float, float]]) -> None:
    grid = {"size": 300, "width": 100, "rows": 3, "perRow": 100}
    found = call(
        "layout", "it.pieces(input.grid, input.offset, input.size)", {"grid": grid, "offset": offset, "size": size}
    )
    assert [(piece["x"], piece["y"], piece["width"]) for piece in found] == [pytest.approx(each) for each in expected]


def test_a_point_finds_the_byte_and_the_span_or_gap_that_was_drawn_there() -> None:
    spans = [
        {"offset": 0, "size": 40, "tenant": "language", "label": "a"},
        {"offset": 60, "size": 100, "tenant": "vision", "label": "b"},
    ]
    points = [
        (0, 0),
        (39, 5),
        (40, 5),
        (59, 15),
        (60, 0),
        (0, 19),
        (59, 34),
        (60, 34),
        (5, 17),
        (-1, 0),
        (100, 0),
        (0, 57),
    ]
    found = call(
        "layout",
        """input.points.map(([x, y]) => {
          const byte = it.byteAt({ size: 300, width: 100, rows: 3, perRow: 100 }, x, y);
          return byte === null ? null : it.spanAt(input.spans, byte, 300);
        })""",
        {"points": points, "spans": spans},
    )
    first, second = spans
    between, after = {"offset": 40, "size": 20, "tenant": None}, {"offset": 160, "size": 140, "tenant": None}
    assert found == [first, first, between, between, second, second, second, after, None, None, None, None]


def test_thousands_of_spans_are_one_path_and_narrow_ones_have_no_border() -> None:
    outline, borders = call(
        "layout",
        """(() => {
          const grid = it.grid(input * 1024, 300);
          const all = Array.from({ length: input }, (_, index) => it.pieces(grid, index * 1024, 1024)).flat();
          return [it.outline(all), it.borders([...all, { x: 8, y: 19, width: 6 }])];
        })()""",
        4000,
    )
    assert outline.count("M") == 4000
    assert borders == "M8 19v16"


@pytest.mark.parametrize(
    ("role", "tenant", "label", "kind"),
    [
        ("weights", "language", "layers.3", "language"),
        ("weights", "language", "layers.29 streamed", "streamed"),
        ("weights", "vision", "blocks.1", "vision"),
        ("weights", "somebody", "else", "other"),
        ("workspace", "activations", "activations", "activations"),
        ("workspace", "language", "layers.0.kv", "kv"),
        ("workspace", "language", "kv", "kv"),
        ("workspace", "language", "rope", "other"),
    ],
)
def test_kinds(role: str, tenant: str, label: str, kind: str) -> None:
    name, *streamed = label.split(" ")
    span = {"tenant": tenant, "label": name, "offset": 0, "size": 1, **({"streamed": True} if streamed else {})}
    assert call("kinds", "it.kindOf(...input)", [span, role]) == kind


def test_totals_leave_what_no_span_takes_as_free() -> None:
    slabs = [
        {"size": 100, "role": "weights", "spans": [{"tenant": "language", "label": "head.0", "offset": 0, "size": 70}]},
        {
            "size": 50,
            "role": "workspace",
            "spans": [
                {"tenant": "language", "label": "layers.0.kv", "offset": 0, "size": 10, "filled": 4},
                {"tenant": "language", "label": "layers.1.kv", "offset": 10, "size": 10, "filled": 0},
            ],
        },
    ]
    sums = call("kinds", "it.totals(input)", slabs)
    assert {kind: each for kind, each in sums.items() if each["size"]} == {
        "language": {"size": 70, "filled": None},
        "kv": {"size": 20, "filled": 4},
        "free": {"size": 60, "filled": None},
    }


def move(number: int) -> dict[str, Any]:
    return {
        "at": 1_700_000_000_000 + number,
        "tenant": "language",
        "label": f"layers.{number}",
        "slab": 0,
        "offset": 256 * number,
        "bytes": 256,
        "direction": "in",
    }


def test_every_move_is_new_once_whatever_the_windows_cut() -> None:
    """However many moves happen between two looks, up to a whole window, each is found new exactly once."""
    ends = list(itertools.accumulate(random.Random(5).choices(range(65), k=200)))
    windows = [[move(number) for number in range(max(0, end - 64), end)] for end in ends]
    code = "input.map((now, look) => it.fresh(look ? input[look - 1] : [], now).map(({ label }) => label))"
    found = [label for each in call("moves", code, windows) for label in each]
    assert found == [f"layers.{number}" for number in range(ends[-1])]


@pytest.mark.parametrize(
    ("before", "now", "new"),
    [
        ([], [], []),
        ([1, 2], [1, 2], []),
        ([1, 2], [], []),  # a new device has moved nothing yet
        ([1, 2], [7], [7]),
        ([1, 1], [1, 1, 1], [1]),  # the same block to the same place within one millisecond
        ([1, 2, 1, 2], [1, 2, 1, 2, 3], [3]),
        ([1, 2, 3], [4, 5, 6], [4, 5, 6]),
    ],
)
def test_new_moves(before: list[int], now: list[int], new: list[int]) -> None:
    windows = [[move(number) for number in numbers] for numbers in (before, now)]
    assert call("moves", "it.fresh(...input)", windows) == [move(number) for number in new]


LOOKS = """
  let tick = null;
  globalThis.setInterval = (work, ms) => { tick = work; return ms; };
  globalThis.clearInterval = () => { tick = null; };
  const { Poller } = await import(web + "app/memory/poller.js");
  const looks = [];
  let now = 0;
  let work = false;
  let answer = () => {};
  let slow = false;
  const poller = new Poller(() => {
    looks.push(now);
    return slow ? new Promise((resolve) => { answer = resolve; }) : Promise.resolve();
  }, () => work);
  const settle = () => new Promise((resolve) => setImmediate(resolve));
  const pass = async (ticks) => {
    for (; ticks > 0; ticks--) {
      now += 250;
      tick?.();
      await settle();
    }
  };
"""


def looks(script: str) -> Any:
    return run_node(LOOKS + script, None)


def test_looks_every_second_when_idle_and_at_every_tick_when_busy() -> None:
    script = "poller.start(); await settle(); await pass(8); work = true; await pass(3); work = false; await pass(4);"
    assert looks(script + "return looks;") == [0, 1000, 2000, 2250, 2500, 2750, 3750]


def test_a_look_that_takes_long_is_never_overtaken() -> None:
    script = "work = slow = true; poller.start(); await pass(6); answer(); await settle(); await pass(2); return looks;"
    assert looks(script) == [0, 1750]


def test_stops_and_starts_again_at_once() -> None:
    script = "poller.start(); poller.start(); await settle(); poller.stop(); await pass(9);"
    assert looks(script + "const quiet = [...looks]; poller.start(); return [quiet, looks, poller.running];") == [
        [0],
        [0, 2250],
        True,
    ]
