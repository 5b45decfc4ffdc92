"""<tandem-copywriter> on a page of another origin: the way in, the way back, and who is not listened to."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.async_api import FrameLocator, Page, expect
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse
from starlette.routing import Route

from pyapp.setup.serve import serving

from .conftest import Open
from .page_parts import photo

EMBED = Path(__file__).resolve().parents[2] / "web" / "embed.js"


@dataclass
class Shop:
    """A shop of another origin (localhost is not 127.0.0.1): one page, with a strict policy of its own."""

    site: str
    open_page: Open
    origin: str = ""
    body: str = ""

    def answer(self, request: Request) -> HTMLResponse:
        html = f"""<!doctype html><html lang="en"><title>Shop</title><link rel="icon" href="data:,"><body>{self.body}
          <script src="{self.site}/embed.js" async></script></body></html>"""
        policy = f"default-src 'none'; img-src data:; script-src {self.site}; frame-src {self.site}"
        return HTMLResponse(html, headers={"content-security-policy": policy})

    async def open(self, body: str, *, init: str = "") -> Page:
        """The shop's page with ``body``, where results and problems are collected; the widgets' door is the fake."""
        self.body = body
        listen = """window.results = []; window.problems = [];
          addEventListener("tandem-result", (event) => results.push([event.target.id, event.detail]));
          addEventListener("tandem-error", (event) => problems.push([event.target.id, event.detail]));"""
        page = await self.open_page("", fake=True, init=listen + init)
        await page.goto(f"{self.origin}/")
        return page


@pytest.fixture
def shop(site: str, open_page: Open) -> Iterator[Shop]:
    shop = Shop(site, open_page)
    with serving(Starlette(routes=[Route("/", shop.answer)])) as url:
        shop.origin = url.rstrip("/").replace("127.0.0.1", "localhost")
        yield shop


def widget(page: Page, element: str) -> FrameLocator:
    return page.frame_locator(f"#{element} iframe")


async def write(frame: FrameLocator) -> None:
    await frame.locator("[data-tandem=photo]").set_input_files(photo())
    await expect(frame.locator("[data-tandem=labels] li")).to_have_count(5)
    await frame.locator("[data-tandem=write]").click()
    await expect(frame.locator("[data-tandem=copy]")).to_contain_text("word23.")
    await expect(frame.locator("[data-tandem=use]")).to_be_enabled()


async def test_result_comes_back_as_an_event(shop: Shop) -> None:
    page = await shop.open('<tandem-copywriter id="one" lang="en"></tandem-copywriter>')
    frame = widget(page, "one")
    await write(frame)
    [[element, result]] = await page.evaluate("results")
    assert element == "one"
    assert result["text"].startswith("word0 word1")
    assert result["labels"][0]["name"] == "coffee mug"
    assert result["source"] == "device"
    assert result["accepted"] is False
    await frame.locator("[data-tandem=copy]").click()
    await page.keyboard.press("Control+Home")
    await page.keyboard.type("Edited: ")
    await frame.get_by_role("button", name="Use this text").click()
    await page.wait_for_timeout(100)
    accepted = (await page.evaluate("results"))[1][1]
    assert accepted["accepted"] is True
    assert accepted["text"].startswith("Edited: word0")


async def test_several_elements_do_not_hear_each_other(shop: Shop) -> None:
    body = '<tandem-copywriter id="one"></tandem-copywriter><tandem-copywriter id="two" lang="zh"></tandem-copywriter>'
    page = await shop.open(body)
    await expect(widget(page, "two").locator("[data-tandem=write]")).to_have_text("撰写文案")
    await write(widget(page, "two"))
    assert [element for element, _ in await page.evaluate("results")] == ["two"]
    titles = [await page.locator(f"#{each} iframe").get_attribute("title") for each in ("one", "two")]
    assert titles == ["Tandem: product copy from a photo", "Tandem 商品文案助手"]


async def test_nothing_is_downloaded_before_the_visitor_acts(shop: Shop) -> None:
    page = await shop.open('<tandem-copywriter id="one"></tandem-copywriter>')
    await expect(widget(page, "one").locator("[data-tandem=write]")).to_be_enabled()
    made = await page.frames[1].evaluate("window.calls")
    assert made == []


async def test_height_follows_the_content(shop: Shop) -> None:
    page = await shop.open('<tandem-copywriter id="one"></tandem-copywriter>')
    frame = widget(page, "one")
    element = page.locator("#one iframe")
    await expect(frame.locator("[data-tandem=write]")).to_be_enabled()
    await write(frame)
    await page.wait_for_timeout(200)
    box = await element.bounding_box()
    inside = await frame.locator(".panel").bounding_box()
    assert box
    assert inside
    assert abs(box["height"] - inside["height"]) <= 1
    assert await page.frames[1].evaluate("document.documentElement.scrollHeight <= innerHeight")


async def test_failures_come_back_too(shop: Shop) -> None:
    failing = 'window.fake = { fail: { describe: { code: "bad_image", message: "No picture." } } }'
    page = await shop.open('<tandem-copywriter id="one"></tandem-copywriter>', init=failing)
    await widget(page, "one").locator("[data-tandem=photo]").set_input_files(photo())
    await expect(widget(page, "one").locator("[data-tandem=error]")).to_be_visible()
    await page.wait_for_timeout(100)
    assert await page.evaluate("problems") == [["one", {"code": "bad_image", "message": "No picture."}]]


async def test_messages_from_anybody_else_are_ignored(shop: Shop) -> None:
    """Another frame of our very origin, and the shop's own window, are not the element's frame."""
    rogue_url = f"{shop.site}/widget.html"
    page = await shop.open(f'<tandem-copywriter id="one"></tandem-copywriter><iframe src="{rogue_url}"></iframe>')
    await expect(widget(page, "one").locator("[data-tandem=write]")).to_be_enabled()
    rogue = page.frame(url=rogue_url)
    assert rogue
    forged = '{ tandem: 1, type: "result", detail: { text: "forged" } }'
    await rogue.evaluate(f"parent.postMessage({forged}, '*')")
    await page.evaluate(f"window.postMessage({forged}, '*')")
    await page.wait_for_timeout(200)
    assert await page.evaluate("results") == []


async def test_the_widget_speaks_to_the_named_parent_only(shop: Shop) -> None:
    """A page that embeds widget.html under another page's name hears nothing."""
    page = await shop.open("")
    await page.evaluate(
        """(src) => {
          window.heard = [];
          addEventListener("message", (event) => heard.push(event.data));
          const frame = document.createElement("iframe");
          frame.src = src;
          document.body.append(frame);
        }""",
        f"{shop.site}/widget.html?parent=https://shop.example",
    )
    frame = page.frame_locator("iframe")
    await write(frame)
    await frame.get_by_role("button", name="Use this text").click()
    await page.wait_for_timeout(200)
    assert await page.evaluate("heard") == []


async def test_taken_out_and_put_back(shop: Shop) -> None:
    page = await shop.open('<tandem-copywriter id="one"></tandem-copywriter>')
    await expect(widget(page, "one").locator("[data-tandem=write]")).to_be_enabled()
    await page.evaluate("window.kept = document.querySelector('#one'); kept.remove()")
    await expect(page.locator("iframe")).to_have_count(0)
    await page.evaluate("document.body.append(kept)")
    await write(widget(page, "one"))
    assert len(await page.evaluate("results")) == 1


async def test_keyboard_goes_in_and_out(shop: Shop) -> None:
    body = '<a href="#a" id="before">a</a><tandem-copywriter id="one"></tandem-copywriter><a href="#b" id="after">b</a>'
    page = await shop.open(body)
    await expect(widget(page, "one").locator("[data-tandem=write]")).to_be_enabled()
    await page.focus("#before")
    await page.keyboard.press("Tab")
    assert await page.frames[1].evaluate("document.activeElement.closest('[data-tandem]').dataset.tandem") == "photo"
    for _ in range(12):
        await page.keyboard.press("Tab")
        if await page.evaluate("document.activeElement.id") == "after":
            return
    raise AssertionError("the focus never left the widget")


async def test_permissions_of_the_frame(shop: Shop) -> None:
    page = await shop.open('<tandem-copywriter id="one"></tandem-copywriter>')
    allow = await page.locator("#one iframe").get_attribute("allow")
    assert allow == f"camera {shop.site}; clipboard-write {shop.site}"


async def test_the_loader_is_small() -> None:
    assert len(EMBED.read_bytes()) < 10_000
    assert len(gzip.compress(EMBED.read_bytes())) < 3_000
