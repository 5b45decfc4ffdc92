"""The memory map looks only while it is open, and says so where there is nothing to see."""

from __future__ import annotations

from playwright.async_api import expect

from .conftest import Open
from .memory_parts import fake, looks, opened
from .page_parts import part


async def test_looks_only_while_open_and_visible(open_page: Open) -> None:
    page = await open_page("/", **fake())
    await expect(part(page, "badge")).to_have_attribute("data-source", "device")
    await page.wait_for_timeout(600)
    assert await looks(page) == 0
    panel = await opened(page)
    await page.wait_for_timeout(2500)
    assert 3 <= await looks(page) <= 4  # at once, and then once a second
    hide = """(hidden) => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    await page.evaluate(hide, True)
    seen = await looks(page)
    await page.wait_for_timeout(1500)
    assert await looks(page) == seen
    await page.evaluate(hide, False)
    await page.wait_for_timeout(100)
    assert await looks(page) == seen + 1
    await panel.locator("summary").first.click()
    seen = await looks(page)
    await page.wait_for_timeout(1500)
    assert await looks(page) == seen


async def test_looks_four_times_a_second_while_writing_and_never_twice_at_a_time(open_page: Open) -> None:
    page = await open_page("/", **fake(slow=50, words=400, slowMemory=100))
    await expect(part(page, "progress")).to_be_hidden()
    await opened(page)
    await page.get_by_label("Your own keywords").fill("oak")
    await part(page, "write").click()
    await expect(part(page, "copy")).to_contain_text("word1")
    before = await looks(page)
    await page.wait_for_timeout(2000)
    assert 5 <= await looks(page) - before <= 9
    await part(page, "stop").click()
    under_way = most = 0
    for name, *_ in await page.evaluate("window.calls"):
        under_way += {"memory": 1, "remembered": -1}.get(name, 0)
        most = max(most, under_way)
    assert most == 1


async def test_without_a_device_the_panel_says_so(open_page: Open) -> None:
    page = await open_page("/?adapter=none", **fake())
    await expect(part(page, "badge")).to_have_attribute("data-source", "cloud")
    panel = part(page, "memory")
    await panel.locator("summary").first.click()
    await expect(panel.get_by_role("status")).to_have_text("There is nothing to draw: no model is on a GPU here.")
    await expect(panel.locator(".map")).to_be_hidden()


async def test_a_device_that_goes_and_comes_back(open_page: Open) -> None:
    failure = {"code": "device_lost", "message": "The GPU was lost; it is being prepared again."}
    page = await open_page("/", **fake(fail={"memory": failure}))
    panel = part(page, "memory")
    await panel.locator("summary").first.click()
    await expect(panel.get_by_role("status")).to_have_text(failure["message"])
    await expect(panel.locator("svg.slab").first).to_be_visible()
    await expect(panel.get_by_role("status")).to_have_text("")


async def test_before_the_client_is_there_it_says_what_it_waits_for(open_page: Open) -> None:
    page = await open_page("/", **fake(slow=120))
    panel = part(page, "memory")
    await panel.locator("summary").first.click()
    await expect(panel.get_by_role("status")).to_contain_text("as soon as the models are loaded")
    await expect(panel.locator("svg.slab").first).to_be_visible()
