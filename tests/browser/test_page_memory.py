"""The memory map on the page: what is drawn where, what moves, and what was decided."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest
from playwright.async_api import expect

from .conftest import Open
from .memory_parts import AT, MIB, fake, give, look_twice, memory, move, opened
from .page_parts import part
from .test_page_access import CONTRAST

# What is on top at points of a slab's picture, given in pixels from its own corner.
KINDS_AT = """(picture, points) => {
  const box = picture.getBoundingClientRect();
  return points.map(([x, y]) => document.elementFromPoint(box.x + x, box.y + y)?.dataset.kind ?? null);
}"""


async def test_every_span_lies_where_it_should_to_the_pixel(open_page: Open) -> None:
    page = await open_page("/", viewport={"width": 1000, "height": 1600}, **fake())
    panel = await opened(page)
    expected = [
        [(0, "language"), (60, "streamed"), (70, "free"), (80, "vision"), (100, None)],
        [(0, "activations"), (3, "other"), (4, "kv"), (5, "unfilled"), (8, None)],
    ]
    for index, (kinds, total) in enumerate(zip(expected, (100, 8), strict=True)):
        picture = panel.locator(f"[data-slab='{index}'] svg")
        await picture.scroll_into_view_if_needed()
        box = await picture.bounding_box()
        assert box
        # Wider than 100 MiB at 256 KiB a pixel: one row.
        assert box["height"] == 16
        points, wanted = [], []
        for (start, kind), (end, _) in itertools.pairwise(kinds):
            for x in (start / total * box["width"] + 1, end / total * box["width"] - 1):
                points.append([x, 8])
                wanted.append(kind)
        assert await picture.evaluate(KINDS_AT, points) == wanted
    assert await panel.locator("[data-slab='0'] .borders").get_attribute("d") != ""


async def test_a_slab_that_is_long_for_a_narrow_window_wraps_into_rows(open_page: Open) -> None:
    page = await open_page("/", viewport={"width": 320, "height": 1200}, **fake())
    panel = await opened(page)
    picture = panel.locator("[data-slab='0'] svg")
    await picture.scroll_into_view_if_needed()
    box = await picture.bounding_box()
    assert box
    assert box["height"] == 16 + 19
    # 50 of the 100 MiB a row; the second begins within layers.0, which ends at 60.
    width = box["width"]
    points = [[width * 0.8 + 2, 8], [width * 0.2 - 1, 27], [width * 0.2 + 1, 27], [width * 0.5, 27], [width - 1, 27]]
    assert await picture.evaluate(KINDS_AT, points) == ["language", "language", "streamed", "free", "vision"]
    await page.set_viewport_size({"width": 900, "height": 1200})
    await expect(picture).to_have_attribute("height", "16")


async def test_figures_legend_and_caption(open_page: Open) -> None:
    page = await open_page("/", **fake())
    panel = await opened(page)
    legend = {
        "language": "Language model 60 MiB",
        "streamed": "Language model, streamed 10 MiB",
        "vision": "Vision model 20 MiB",
        "kv": "KV cache 1 MiB of 4 MiB filled",
        "activations": "Activations 3 MiB",
        "other": "Tables and other 1 MiB",
        "free": "Free 10 MiB",
    }
    await expect(panel.locator(".legend li")).to_have_count(len(legend))
    for kind, words in legend.items():
        await expect(panel.locator(f".legend [data-kind={kind}]")).to_have_text(words)
    await expect(panel.locator(".figures")).to_have_text(
        "Held on the GPU: 108 MiB now, 120 MiB at most, of a budget of 900 MiB. "
        "Moved there so far: 60 MiB in 3 uploads."
    )
    await expect(panel.locator("figcaption").first).to_have_text("Slab 1, weights: 90 MiB of 100 MiB used")
    label = await panel.get_by_role("img").nth(1).get_attribute("aria-label")
    assert label == (
        "Slab 2, working memory: 8 MiB of 8 MiB used; KV cache 4 MiB, Activations 3 MiB, Tables and other 1 MiB"
    )


async def test_the_pointer_tells_what_it_is_over(open_page: Open) -> None:
    page = await open_page("/", **fake())
    panel = await opened(page)
    readout = panel.locator(".readout")
    for index, part_of_it, words in (
        (0, 0.5, "Slab 1: Language model, layers.0, 20 MiB from 40 MiB"),
        (0, 0.75, "Slab 1: free, 10 MiB from 70 MiB"),
        (1, 0.9, "Slab 2: KV cache, layers.0.kv, 4 MiB from 4 MiB (1 MiB filled)"),
    ):
        picture = panel.locator(f"[data-slab='{index}'] svg")
        box = await picture.bounding_box()
        assert box
        await picture.hover(position={"x": box["width"] * part_of_it, "y": 8})
        await expect(readout).to_have_text(words)
    await page.mouse.move(0, 0)
    await expect(readout).to_have_text("")


async def test_every_span_is_a_row_of_the_table_and_rows_stay_while_blocks_move(open_page: Open) -> None:
    page = await open_page("/", **fake())
    panel = await opened(page)
    rows = panel.locator("tbody tr")
    await expect(rows).to_have_count(0)
    await panel.get_by_text("Every block in figures").click()
    await expect(rows).to_have_count(7)
    await expect(rows.nth(1).locator("td")).to_have_text(
        ["Language model", "layers.0", "20 MiB", "slab 1, from 40 MiB"]
    )
    await expect(rows.nth(6)).to_contain_text("4 MiB (1 MiB filled)")
    await rows.nth(1).evaluate("(row) => { window.kept = row; }")
    changed = memory()
    changed["slabs"][0]["spans"][1]["label"] = "layers.9"
    del changed["slabs"][1]["spans"][1]
    await give(page, changed)
    await expect(rows).to_have_count(6)
    await expect(rows.nth(1)).to_contain_text("layers.9")
    assert await rows.nth(1).evaluate("(row) => row === window.kept")


async def test_thousands_of_spans_are_a_few_elements_and_are_drawn_once(open_page: Open) -> None:
    many = memory()
    size = 100 * MIB // 4000
    spans = [
        {"offset": size * i, "size": size, "tenant": ("language", "vision")[i % 2], "label": f"b.{i}"}
        for i in range(4000)
    ]
    many["slabs"][0]["spans"] = spans
    page = await open_page("/", **fake(memory=many))
    panel = await opened(page)
    assert await panel.locator("[data-slab='0'] svg *").count() < 20
    await panel.get_by_text("Every block in figures").click()
    await expect(panel.locator("tbody tr")).to_have_count(400)
    await expect(panel).to_contain_text("And 3,603 more")
    await page.evaluate(
        """() => {
          window.changes = 0;
          const watch = new MutationObserver((records) => { window.changes += records.length; });
          const everything = { subtree: true, childList: true, attributes: true, characterData: true };
          watch.observe(document.querySelector("[data-tandem=memory]"), everything);
        }"""
    )
    await look_twice(page)
    assert await page.evaluate("window.changes") == 0


async def test_a_move_is_logged_once_and_lights_up_once(open_page: Open) -> None:
    page = await open_page("/", **fake())
    panel = await opened(page)
    lines = panel.locator("section").first.locator("li")
    await expect(lines).to_have_text(["18:03:12 Language model in 2.3 MiB layers.0"])
    # What happened before anybody looked does not light up.
    assert await panel.locator(".moved").count() == 0
    await page.evaluate(
        """() => {
          window.lit = [];
          new MutationObserver((records) => {
            const added = records.flatMap((record) => [...record.addedNodes]);
            for (const node of added) if (node.matches?.(".moved")) window.lit.push(node.getAttribute("d"));
          }).observe(document.querySelector(".slabs"), { subtree: true, childList: true });
        }"""
    )
    changed = memory()
    changed["moves"] += [move(1), move(2, "out", offset=70 * MIB)]
    await give(page, changed)
    expected = ["layers.2", "layers.1", "layers.0"]
    await expect(lines.locator("code")).to_have_text(expected)
    await expect(lines.first).to_have_text("18:03:14 Language model out 2.3 MiB layers.2")
    await look_twice(page)
    await expect(lines.locator("code")).to_have_text(expected)
    await expect(panel.locator(".moved")).to_have_count(0)
    [places] = await page.evaluate("window.lit")
    width = float(await panel.locator("[data-slab='0'] svg").get_attribute("width") or 0)
    starts = [float(x) for x in re.findall(r"M([\d.]+) ", places)]
    assert starts == pytest.approx([0.4 * width, 0.7 * width], abs=1)


async def test_reduced_motion_frames_a_move_and_nothing_flashes(open_page: Open) -> None:
    page = await open_page("/", reduced_motion="reduce", **fake())
    panel = await opened(page)
    changed = memory()
    changed["moves"].append(move(1))
    await give(page, changed)
    moved = panel.locator(".moved")
    await expect(moved).to_have_count(1)
    style = await moved.evaluate(
        "(it) => { const s = getComputedStyle(it); return [s.animationName, s.opacity, s.stroke]; }"
    )
    assert style[:2] == ["none", "1"]
    assert style[2] != "none"


async def test_decisions_in_words_with_figures(open_page: Open) -> None:
    def decision(seconds: int, action: str, **more: Any) -> dict[str, Any]:
        return {
            "when": AT + 1000 * seconds,
            "model": "language",
            "need": 81 * MIB,
            "room": 49 * MIB,
            "action": action,
            **more,
        }

    page = await open_page("/", **fake(decisions=[decision(0, "resident", room=90 * MIB), decision(1, "stream")]))
    await opened(page)
    lines = part(page, "memory").locator("[data-action]")
    expected = [
        "18:03:13 Language model: needs 81 MiB, room 49 MiB: streams the rest",
        "18:03:12 Language model: needs 81 MiB, room 90 MiB: all of it stays on the GPU",
    ]
    await expect(lines).to_have_text(expected)
    await page.evaluate("(one) => { window.fake.decisions.push(one); }", decision(2, "cloud", room=10 * MIB))
    await expect(lines).to_have_text(
        ["18:03:14 Language model: needs 81 MiB, room 10 MiB: the cloud is asked first", *expected]
    )
    await page.get_by_role("button", name="中文").click()
    await expect(lines.first).to_have_text("18:03:14 语言模型：需要 81 MiB，可用 10 MiB：优先使用云端")
    await expect(part(page, "memory").locator(".legend [data-kind=kv]")).to_have_text("KV 缓存 4 MiB 中已填 1 MiB")


async def test_keyboard_opens_reads_and_closes_it(open_page: Open) -> None:
    page = await open_page("/", **fake())
    await expect(part(page, "badge")).to_have_attribute("data-source", "device")
    panel = part(page, "memory")
    summary = panel.locator("summary").first
    assert await panel.evaluate("(it) => it.open") is False
    await summary.focus()
    await page.keyboard.press("Enter")
    await expect(panel.locator("svg.slab").first).to_be_visible()
    await page.keyboard.press("Tab")
    await expect(panel.locator(".spans > summary")).to_be_focused()
    await page.keyboard.press("Space")
    await page.keyboard.press("Tab")
    region = panel.get_by_role("region", name="Every block in figures")
    await expect(region).to_be_focused()
    await expect(region.get_by_role("columnheader")).to_have_text(["Tenant", "Block", "Size", "Where"])
    await summary.focus()
    await page.keyboard.press("Space")
    assert await panel.evaluate("(it) => it.open") is False


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_narrow_and_legible_in_light_and_dark(open_page: Open, lang: str, scheme: str) -> None:
    busy = memory()
    busy["moves"] = [move(number) for number in range(64)]
    told = {"when": AT, "model": "language", "need": 81 * MIB, "room": 49 * MIB, "action": "stream"}
    plan = fake(memory=busy, decisions=[told])
    size = {"width": 320, "height": 640}
    page = await open_page(f"/?lang={lang}", viewport=size, color_scheme=scheme, **plan)
    panel = await opened(page)
    await panel.locator(".spans > summary").click()
    await expect(panel.locator("tbody tr")).to_have_count(7)
    assert await page.evaluate("document.documentElement.scrollWidth") == 320
    outside = await panel.evaluate(
        """(panel) => [...panel.querySelectorAll("*")]
          .filter((each) => each.checkVisibility() && !each.closest("table, defs, .patterns"))
          .filter((each) => { const box = each.getBoundingClientRect(); return box.left < 0 || box.right > 320.5; })
          .map((each) => each.outerHTML.slice(0, 120))"""
    )
    assert outside == []
    assert await page.evaluate(CONTRAST) == []


async def test_kinds_differ_without_colour(open_page: Open) -> None:
    """Each kind has marks of its own; only the filled and the unfilled cache differ by their ground alone."""
    page = await open_page("/", **fake())
    panel = await opened(page)
    marks = await panel.locator("pattern").evaluate_all(
        "(all) => all.map((each) => [each.id, each.querySelector('.marks').getAttribute('d')])"
    )
    kinds = dict(marks)
    assert len(kinds) == 8
    assert kinds.pop("memory-fill-unfilled") == kinds["memory-fill-kv"]
    assert len(set(kinds.values())) == 7
    grounds = [
        await panel.locator(f"#memory-fill-{kind} .ground").evaluate("(it) => getComputedStyle(it).fill")
        for kind in ("kv", "unfilled")
    ]
    assert grounds[0] != grounds[1]
