"""The page with everything real behind it: Python, WGSL on SwiftShader, the store, the gateway and its llama.cpp."""

from __future__ import annotations

from pathlib import Path

from playwright.async_api import Page, expect

from .conftest import Open
from .page_parts import part, photo, written

LOAD_MS = 240_000
WRITE_MS = 240_000
CLOUD = "**/api/ai/cloud-stream"


async def give_espresso(page: Page, data: Path) -> None:
    """The picture of a cup of espresso, and the wait for its labels."""
    await part(page, "photo").set_input_files(data / "pics" / "coffee.png")
    await expect(part(page, "labels").locator("li")).to_have_count(5, timeout=LOAD_MS)
    await expect(part(page, "labels").locator("li").first).to_contain_text("espresso")


async def write(page: Page) -> str:
    await part(page, "write").click()
    await written(page, WRITE_MS)
    return await part(page, "copy").inner_text()


async def test_on_the_device_and_again_without_a_download(open_page: Open, site: str, data: Path) -> None:
    page = await open_page("/?adapter=software&cloud=none")
    await expect(part(page, "notice")).to_contain_text("117 MB")
    await give_espresso(page, data)
    await expect(page.get_by_text("Recognised on this device's GPU")).to_be_visible()
    await page.get_by_text("Short", exact=True).click()
    text = await write(page)
    assert len(text) > 40
    assert "espresso" in text.lower()
    await expect(part(page, "badge")).to_have_attribute("data-source", "device")
    await expect(part(page, "badge")).to_contain_text("software adapter")
    await expect(page.locator(".copy-block")).to_contain_text("Written on this device")
    await expect(part(page, "pool").locator("[data-tenant=language]")).to_contain_text("SmolLM2")
    context = page.context
    await page.close()

    asked: list[str] = []
    context.on("request", lambda request: asked.append(request.url))
    page = await context.new_page()
    await page.goto(f"{site}/?adapter=software&cloud=none")
    await expect(part(page, "badge")).to_have_attribute("data-source", "device", timeout=LOAD_MS)
    await expect(part(page, "notice")).to_be_hidden()
    assert [url for url in asked if url.endswith(".bin")] == []
    await give_espresso(page, data)
    await page.get_by_text("Short", exact=True).click()
    assert await write(page) == text  # drawn, but with the same seed


async def test_without_a_gpu_the_processor_looks_and_the_cloud_writes(open_page: Open, data: Path) -> None:
    page = await open_page("/?adapter=none")
    await give_espresso(page, data)
    await expect(page.get_by_text("Recognised on this device's processor")).to_be_visible()
    text = await write(page)
    assert len(text) > 40
    await expect(part(page, "badge")).to_have_attribute("data-source", "cloud")
    await expect(part(page, "badge")).to_contain_text("The GPU is not used: this page is set not to.")
    await expect(page.locator(".copy-block")).to_contain_text("Written by the cloud")
    await expect(part(page, "pool")).to_contain_text("None is held")


async def test_with_the_gateway_down_too_it_says_so_and_a_retry_goes_through(open_page: Open, data: Path) -> None:
    page = await open_page("/?adapter=none")
    await page.context.route(CLOUD, lambda route: route.abort("connectionrefused"))
    await give_espresso(page, data)
    await page.get_by_label("Your own keywords").fill("oak")
    assert await write(page) == ""
    error = part(page, "error")
    await expect(error).to_have_attribute("data-code", "cloud_unavailable")
    await expect(part(page, "labels").locator("li")).to_have_count(5)
    await expect(page.get_by_label("Your own keywords")).to_have_value("oak")
    await page.context.unroute(CLOUD)
    await error.get_by_role("button", name="Try again").click()
    await written(page, WRITE_MS)
    assert len(await part(page, "copy").inner_text()) > 40
    await expect(error).to_be_hidden()


async def test_a_file_that_is_no_image_harms_nothing(open_page: Open, data: Path) -> None:
    page = await open_page("/?adapter=none")
    for name, content in (("empty.png", b""), ("notes.txt", b"not a picture"), ("cut.png", photo()["buffer"][:40])):
        await part(page, "photo").set_input_files({"name": name, "mimeType": "image/png", "buffer": content})
        await expect(part(page, "error")).to_have_attribute("data-code", "bad_image", timeout=LOAD_MS)
        await expect(part(page, "labels")).to_be_hidden()
        await part(page, "error").get_by_role("button", name="Dismiss").click()
    await give_espresso(page, data)
    await expect(part(page, "error")).to_be_hidden()


async def test_where_python_cannot_start_the_cloud_still_writes(open_page: Open, site: str) -> None:
    page = await open_page("")
    await page.context.route("**/pyodide.mjs", lambda route: route.fulfill(status=404, body=""))
    await page.goto(f"{site}/")
    await expect(part(page, "badge")).to_have_attribute("data-source", "cloud", timeout=LOAD_MS)
    await part(page, "photo").set_input_files(photo())
    await expect(part(page, "error")).to_have_attribute("data-code", "no_device")
    await page.get_by_label("Your own keywords").fill("oak bowl")
    assert len(await write(page)) > 40
    await expect(page.locator(".copy-block")).to_contain_text("Written by the cloud")
