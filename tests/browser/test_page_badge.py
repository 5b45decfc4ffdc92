"""The badge's side and reason are of one text, with a door whose answers are fixed (fake_tandem.js)."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from .conftest import Open
from .page_parts import describe, fake, part, written


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("adapter=none", "The GPU is not used: this page is set not to."),
        ("mode=only_in_cloud", "The cloud is asked first: this page is set to do so."),
        ("adapter=none&lang=zh", "按此页面的设置，不使用 GPU。"),
    ],
)
async def test_what_was_asked_for_is_told_in_the_page_s_words(open_page: Open, query: str, says: str) -> None:
    page = await open_page(f"/?{query}", **fake())
    await expect(part(page, "badge")).to_have_attribute("data-source", "cloud")
    await expect(part(page, "badge")).to_contain_text(says)


@pytest.mark.parametrize(
    ("lang", "wrote", "loads", "gpu"),
    [
        (
            "en",
            "Written by the cloud",
            "The models were still being loaded here.",
            "The model ran on this device's GPU (Fake).",
        ),
        ("zh", "由云端撰写", "当时模型仍在加载到本设备。", "模型当时运行在本机 GPU 上（Fake）。"),
    ],
)
async def test_a_text_keeps_its_side_and_reason_until_the_next_one(
    open_page: Open, lang: str, wrote: str, loads: str, gpu: str
) -> None:
    """The cloud writes a text while the models are loaded; they are there before the next one. Of a text that is
    finished nothing is told as if it went on."""
    page = await open_page(f"/?adapter=software&lang={lang}", **fake(behind={}))
    badge = part(page, "badge")
    await describe(page)
    await part(page, "write").click()
    await written(page)
    tenant = part(page, "pool").locator("[data-tenant=language]")
    await expect(tenant).to_have_count(0)
    await page.evaluate("fake.arrive()")
    await expect(tenant).to_be_visible()  # the pool is drawn right after the badge, from the same status
    await expect(badge).to_have_attribute("data-source", "cloud")
    await expect(badge.locator("strong")).to_have_text(wrote)
    await expect(badge.locator(".why")).to_have_text(f"· {loads}")
    await part(page, "write").click()
    await expect(badge).to_have_attribute("data-source", "device")
    await expect(badge.locator(".why")).to_have_text(f"· {gpu}")


@pytest.mark.parametrize(
    ("lang", "says"),
    [("en", "At the time: Told in English."), ("zh", "当时：本设备资源紧张，这段文案由云端撰写。")],
)
async def test_a_text_that_another_side_takes_over_says_why(open_page: Open, lang: str, says: str) -> None:
    page = await open_page(f"/?lang={lang}", **fake(tells={"code": "pressure", "source": "cloud"}))
    badge = part(page, "badge")
    await expect(badge).to_have_attribute("data-source", "device")
    await describe(page)
    await part(page, "write").click()
    await written(page)
    await expect(badge).to_have_attribute("data-source", "cloud")
    await expect(badge.locator(".why")).to_have_text(f"· {says}")
    await expect(page.locator(".event")).to_be_hidden()  # what was told while it was written


async def test_a_text_that_waited_for_the_gpu_is_not_told_of_its_loss(open_page: Open) -> None:
    """The reason is that of the status when its first text comes, not when it was asked for."""
    page = await open_page("/?adapter=software&mode=only_on_device", **fake(behind={"waits": True}))
    why = part(page, "badge").locator(".why")
    await describe(page)
    await part(page, "write").click()
    await expect(page.get_by_text("The text begins then.")).to_be_visible()
    await expect(why).to_contain_text("The GPU was lost")
    await page.evaluate("fake.arrive()")
    await written(page)
    await expect(why).to_have_text("· The model ran on this device's GPU (Fake).")
    await expect(part(page, "badge")).to_have_attribute("title", "")
