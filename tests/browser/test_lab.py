"""The lab: the site's wheel in a PyScript worker, driven by hand."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.async_api import Page, expect

from tests.conftest import ROOT

from .conftest import Open
from .page_parts import part, photo

START_MS = 120_000


async def run(page: Page, code: str, timeout: float = 60_000) -> str:
    """Runs code in the lab and returns what it printed."""
    await part(page, "code").fill(code)
    await part(page, "run").click()
    await part(page, "run").and_(page.locator(":enabled")).wait_for(timeout=timeout)
    return await part(page, "output").inner_text()


async def test_python_by_hand(open_page: Open) -> None:
    page = await open_page("/lab.html")
    await part(page, "run").and_(page.locator(":enabled")).wait_for(timeout=START_MS)
    # The same wheel, the engine's JavaScript helpers, and a GPU in the worker.
    printed = await run(
        page,
        "import pyapp, js, tandem_replay, tandem_opfs, tandem_tabs\n"
        "print(pyapp.__file__)\nassert js.navigator.gpu\n{'a': 1}",
    )
    assert printed.split() == ["/lib/python3.14/site-packages/pyapp/__init__.py", "{'a':", "1}"]
    await expect(part(page, "output")).to_have_attribute("data-ok", "true")

    # Printed text is on the page at once, not at the end; names stay from run to run; stop works at an await.
    await part(page, "code").fill("import asyncio\nkept = 41\nprint('first')\nawait asyncio.sleep(600)\nprint('never')")
    await part(page, "run").click()
    await expect(part(page, "output")).to_have_text("first\n")
    await page.get_by_role("button", name="Stop").click()
    await expect(part(page, "output")).to_have_text("first\nStopped.\n")
    assert (await run(page, "kept + 1")).strip() == "42"

    # An error shows the visitor's own lines and none of ours.
    printed = await run(page, "def f():\n    return 1 / 0\nf()")
    assert 'File "<lab>", line 2, in f' in printed
    assert printed.strip().endswith("ZeroDivisionError: division by zero")
    assert "lab.py" not in printed
    await expect(part(page, "output")).to_have_attribute("data-ok", "false")

    # The photo is a variable.
    picture = photo()
    await page.get_by_label("A photo, as the variable photo").set_input_files(picture)
    assert (await run(page, "photo[:4], len(photo)")).strip() == f"(b'\\x89PNG', {len(picture['buffer'])})"


async def test_the_readme_s_lines_work_as_they_stand(open_page: Open) -> None:
    """No GPU but an emulated one is here, which "auto" does not take: the cloud writes, and no address was given."""
    [code] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.S)
    page = await open_page("/lab.html")
    await expect(page.get_by_label("A photo, as the variable photo")).to_be_visible()
    await expect(page.locator(".messages")).to_have_css("position", "static")  # the progress of the start is in it
    await part(page, "run").and_(page.locator(":enabled")).wait_for(timeout=START_MS)
    await expect(page.locator(".messages")).to_have_css("position", "absolute")  # empty, and takes no room
    printed = await run(page, code, timeout=120_000)
    assert await part(page, "output").get_attribute("data-ok") == "true", printed
    assert len(printed) > 40
    assert "cloud" in await run(page, "client.status['source']")


async def run_example(page: Page, name: str) -> str:
    """Runs one of the page's examples on the software adapter; it must not raise."""
    await page.locator(f"[data-example={name}]").click()
    code = await part(page, "code").input_value()
    assert '"auto"' in code
    printed = await run(page, code.replace('"auto"', '"software"'), timeout=240_000)
    assert await part(page, "output").get_attribute("data-ok") == "true", printed
    return printed


async def test_the_examples_work(open_page: Open, data: Path) -> None:
    page = await open_page("/lab.html")
    await part(page, "run").and_(page.locator(":enabled")).wait_for(timeout=START_MS)
    assert "swiftshader" in (await run_example(page, "probe")).lower()
    await page.get_by_label("A photo, as the variable photo").set_input_files(data / "pics" / "coffee.png")
    seen = await run_example(page, "describe")
    assert "espresso" in seen.splitlines()[0]
    assert "by device" in seen
    text = await run_example(page, "generate")
    assert "'type': 'usage'" in text
    assert "'source': 'device'" in text
    plan = await run_example(page, "plan")
    assert "dispatches a layer" in plan
    assert len(plan.splitlines()) >= 6


async def test_only_the_lab_may_evaluate_strings(open_page: Open, site: str) -> None:
    page = await open_page("")
    for path, allowed in (("/lab.html", True), ("/", False), ("/widget.html", False)):
        response = await page.request.get(site + path)
        assert ("'unsafe-eval'" in response.headers["content-security-policy"]) is allowed, path
