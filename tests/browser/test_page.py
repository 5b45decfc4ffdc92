"""The page's own behaviour, with a door whose answers are fixed (fake_tandem.js)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from .conftest import Open, Watch
from .page_parts import calls, describe, fake, part, photo, written

HERE_FAKE = Path(__file__).with_name("fake_tandem.js")
ROOT = Path(__file__).resolve().parents[2]


async def test_photo_to_copy(open_page: Open) -> None:
    page = await open_page("/", **fake())
    await describe(page)
    first = part(page, "labels").locator("li").first
    await expect(first).to_contain_text("coffee mug")
    await expect(first).to_contain_text("71%")
    bar, track = first.locator(".fill"), first.locator(".bar")
    boxes = [await each.bounding_box() for each in (bar, track)]
    assert boxes[0]
    assert boxes[1]
    assert boxes[0]["width"] / boxes[1]["width"] == pytest.approx(0.713, abs=0.01)
    await expect(page.locator(".thumbnail")).to_be_visible()
    await page.get_by_label("Tone").select_option("playful")
    await page.get_by_text("Short", exact=True).click()
    await page.get_by_label("Your own keywords").fill("oak, hand made ,, gift")
    await part(page, "write").click()
    await written(page)
    await expect(part(page, "copy")).to_have_text(" ".join(f"word{i}{'.' * (i % 8 == 7)}" for i in range(24)))
    await expect(part(page, "badge")).to_have_attribute("data-source", "device")
    await expect(part(page, "badge")).to_contain_text("The model ran on this device's GPU")
    [[_, request]] = await calls(page, "generate")
    assert isinstance(request, dict)
    assert request["brief"] == {
        "tone": "playful",
        "language": "en",
        "length": "short",
        "keywords": ["oak", "hand made", "gift"],
    }
    assert [label["name"] for label in request["facts"]["labels"]][:2] == ["coffee mug", "cup"]
    # Drawn, as the most likely text of a small model goes in circles, but from visit to visit alike.
    assert (request["temperature"], request["topP"], request["seed"]) == (0.7, 0.9, 1)


async def test_text_appears_as_it_is_written_and_stops(open_page: Open) -> None:
    page = await open_page("/", **fake(slow=60, words=400))
    await describe(page)
    await part(page, "write").click()
    await expect(part(page, "copy")).to_contain_text("word2")
    before = len(await part(page, "copy").inner_text())
    await expect(part(page, "copy")).to_contain_text("word9")
    assert len(await part(page, "copy").inner_text()) > before
    await expect(part(page, "copy")).to_have_attribute("contenteditable", "false")
    await part(page, "stop").click()
    await written(page)
    assert "word399" not in await part(page, "copy").inner_text()
    await expect(page.get_by_text("stopped by you")).to_be_visible()
    # What a screen reader hears of it.
    await expect(page.locator(".copy-block [aria-live=polite]")).to_contain_text("Writing stopped early.")


@pytest.mark.parametrize("words", [1, 3])
async def test_the_rate_is_that_after_the_first_text(open_page: Open, words: int) -> None:
    """Of a text that comes all at once there is none."""
    page = await open_page("/", **fake(words=words, tokens=40, slow=200))
    await describe(page)
    await part(page, "write").click()
    await written(page)
    shown = await page.get_by_text(f"{40 * words} tokens").inner_text()
    times: list[Any] = [at for _, at in await calls(page, "text")]
    rates = [float(rate.replace(",", "")) for rate in re.findall(r"([\d.,]+) tokens/s", shown)]
    if words == 1:
        assert rates == []
    else:  # the fake reads its clock right before the page does; with the first 40 tokens it were half as much again
        assert rates == [pytest.approx(80_000 / (times[-1] - times[0]), rel=0.1)]


async def test_versions_edits_and_clipboard(open_page: Open) -> None:
    page = await open_page("/", **fake(words=5), permissions=["clipboard-read", "clipboard-write"])
    await describe(page)
    await part(page, "write").click()
    await written(page)
    await part(page, "copy").click()
    await page.keyboard.press("Control+End")
    await page.keyboard.type(" mine")
    await page.get_by_role("button", name="Regenerate").click()
    await written(page)
    first, again = [call[1] for call in await calls(page, "generate")]
    assert isinstance(first, dict)
    assert isinstance(again, dict)
    assert again["temperature"] > 0
    assert again["seed"] != first["seed"]
    await page.get_by_role("button", name="Earlier version").click()
    await expect(part(page, "copy")).to_have_text("word0 word1 word2 word3 word4 mine")
    await page.get_by_role("button", name="Copy", exact=True).click()
    await expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert await page.evaluate("navigator.clipboard.readText()") == "word0 word1 word2 word3 word4 mine"


@pytest.mark.parametrize("how", ["drop", "paste"])
async def test_photo_dropped_or_pasted(open_page: Open, how: str) -> None:
    page = await open_page("/", **fake())
    await part(page, "write").wait_for()
    await page.evaluate(
        """(how) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array([1, 2, 3])], "a.png", { type: "image/png" }));
          const event = how === "drop"
            ? new DragEvent("drop", { dataTransfer: transfer, bubbles: true, cancelable: true })
            : new ClipboardEvent("paste", { clipboardData: transfer, bubbles: true, cancelable: true });
          if (document.body.dispatchEvent(event)) throw new Error("the browser would handle the event itself");
        }""",
        how,
    )
    await expect(part(page, "labels").locator("li")).to_have_count(5)
    assert await calls(page, "describe") == [["describe", 3, "image/png"]]


async def test_text_pasted_into_a_field_stays_text(open_page: Open) -> None:
    page = await open_page("/", **fake(), permissions=["clipboard-read", "clipboard-write"])
    keywords = page.get_by_label("Your own keywords")
    await keywords.focus()
    await page.evaluate("navigator.clipboard.writeText('oak')")
    await page.keyboard.press("Control+V")
    await expect(keywords).to_have_value("oak")
    assert await calls(page, "describe") == []


async def test_photo_taken_with_the_camera(open_page: Open) -> None:
    page = await open_page("/", **fake(), permissions=["camera"])
    await page.get_by_role("button", name="Take a photo").click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.get_by_role("button", name="Take the photo").click()
    await expect(part(page, "labels").locator("li")).to_have_count(5)
    [[_, size, kind]] = await calls(page, "describe")
    assert kind == "image/jpeg"
    assert isinstance(size, int)
    assert size > 1000
    await expect(page.get_by_role("dialog")).to_have_count(0)


async def test_a_phone_gets_its_own_camera(open_page: Open) -> None:
    page = await open_page("/", **fake(), has_touch=True, is_mobile=True, viewport={"width": 360, "height": 700})
    await part(page, "write").wait_for()
    async with page.expect_file_chooser() as chooser:
        await page.get_by_role("button", name="Take a photo").click()
    chosen = await chooser.value
    assert await chosen.element.get_attribute("capture") == "environment"
    await chosen.set_files(photo())
    await expect(part(page, "labels").locator("li")).to_have_count(5)


async def test_languages_that_the_model_does_not_list_are_off_and_say_why(open_page: Open) -> None:
    page = await open_page("/", **fake())
    options = page.get_by_label("Language of the copy").locator("option")
    await expect(options.first).to_have_text("English")
    await expect(options.and_(page.locator(":enabled"))).to_have_count(1)
    chinese = options.and_(page.locator("[value=zh]"))
    assert await chinese.is_disabled()
    assert "not offered by SmolLM2" in (await chinese.text_content() or "")
    await expect(page.get_by_text("writes English only")).to_be_visible()


async def test_pool_bar(open_page: Open) -> None:
    page = await open_page("/?pool=200", **fake())
    pool = part(page, "pool")
    await expect(pool).to_contain_text("90 MiB of 200 MiB held")
    await describe(page)
    await expect(pool).to_contain_text("108 MiB of 200 MiB held")
    await expect(pool.locator("[data-tenant=vision]")).to_contain_text("EfficientNet-Lite0")
    await expect(pool.locator("[data-tenant=vision]")).to_contain_text("18 MiB")
    segments = [await each.bounding_box() for each in await pool.locator(".segment").all()]
    bar = await pool.locator(".pool-bar").bounding_box()
    assert bar
    assert segments[0]
    assert segments[0]["width"] / bar["width"] == pytest.approx(90 / 200, abs=0.01)


async def test_parameters_reach_the_door(open_page: Open) -> None:
    query = "/?adapter=software&model=smollm2-135m&vision=none&mode=only_on_device&pool=512&cloud=null&lang=zh"
    page = await open_page(query, **fake())
    await expect(part(page, "badge")).to_have_attribute("data-source", "device")
    assert await calls(page, "create") == [
        [
            "create",
            {
                "adapter": "software",
                "model": "smollm2-135m",
                "vision": None,
                "mode": "only_on_device",
                "poolMiB": 512,
                "cloud": None,
            },
        ]
    ]
    await expect(page.get_by_role("button", name="撰写文案")).to_be_visible()


async def test_nothing_given_is_said_and_the_photo_gets_the_focus(open_page: Open) -> None:
    page = await open_page("/", **fake())
    await part(page, "write").click()
    await expect(part(page, "error")).to_contain_text("Add a product photo, or at least one keyword")
    assert await page.evaluate("document.activeElement.closest('[data-tandem=photo]') !== null")
    await page.get_by_label("Your own keywords").fill("oak bowl")
    await page.keyboard.press("Enter")
    await written(page)
    await expect(part(page, "copy")).to_contain_text("word23.")
    await expect(part(page, "error")).to_be_hidden()


@pytest.mark.parametrize(
    ("call", "code"), [("create", "bad_argument"), ("describe", "bad_image"), ("generate", "cloud_unavailable")]
)
async def test_an_error_is_one_sentence_and_retrying_loses_nothing(open_page: Open, call: str, code: str) -> None:
    sentence = "Something did not work (3 of 5); try it again."
    page = await open_page("/", **fake(fail={call: {"code": code, "message": sentence}}))
    error = part(page, "error")
    if call != "create":
        await part(page, "photo").set_input_files(photo())
        await page.get_by_label("Your own keywords").fill("oak")
        if call == "generate":
            await expect(part(page, "labels").locator("li")).to_have_count(5)
            await part(page, "write").click()
    await expect(error.locator(".sentence")).to_have_text(sentence)
    await expect(error).to_have_attribute("data-code", code)
    await expect(error.locator("code")).to_have_text(code)
    assert await error.get_attribute("role") == "alert"
    await error.get_by_role("button", name="Try again").click()
    await expect(error).to_be_hidden()
    if call == "create":
        await expect(part(page, "badge")).to_have_attribute("data-source", "device")
        return
    await expect(part(page, "labels").locator("li")).to_have_count(5)
    await expect(page.get_by_label("Your own keywords")).to_have_value("oak")
    await expect(page.locator(".thumbnail")).to_be_visible()
    if call == "generate":
        await written(page)
        await expect(part(page, "copy")).to_contain_text("word23.")
        await expect(page.get_by_text("1 / 2").or_(page.get_by_text("2 / 2"))).to_be_visible()


async def test_a_failure_of_our_own_is_told_and_logged(open_page: Open, watch: Watch) -> None:
    page = await open_page("/", **fake(fail={"create": {"message": "a bug"}}))
    await expect(part(page, "error")).to_have_attribute("data-code", "unexpected")
    watch.expect("a bug")


async def test_first_download_is_announced_with_its_size(open_page: Open, site: str) -> None:
    page = await open_page("/?adapter=software", **fake(slow=60))
    listed = json.loads((ROOT / "dist/models/index.json").read_text())["models"]
    size = round(sum(model["bytes"] for model in listed) / 1e6)
    await expect(part(page, "notice")).to_contain_text(f"{size} MB")
    python = json.loads((ROOT / "dist/wheels/index.json").read_text())["runtimeDownloadBytes"]
    shown = f"{python / 1e6:.1f}".removesuffix(".0")
    await expect(part(page, "notice")).to_contain_text(f"Python on top: {shown} MB")
    progress = part(page, "progress")
    await expect(progress).to_have_attribute("data-stage", "weights")
    await expect(progress).to_contain_text("of 117 MB")
    await expect(page.get_by_role("progressbar")).to_have_count(1)
    await expect(progress).to_be_hidden()
    await expect(part(page, "notice")).to_be_hidden()


@pytest.mark.parametrize(
    ("lang", "stage", "says"),
    [
        ("en", "weights", "Downloading the models"),
        ("en", "stored", "Checking what this device has stored"),
        ("zh", "weights", "正在下载模型"),
        ("zh", "stored", "正在检查本机已存的模型"),
    ],
)
async def test_the_bar_tells_a_download_from_what_is_stored(open_page: Open, lang: str, stage: str, says: str) -> None:
    stages = [[stage, 116.9e6]]
    page = await open_page(f"/?adapter=software&lang={lang}", **fake(slow=500, stages=stages))
    await expect(part(page, "progress").locator(".stage")).to_have_text(says)


async def test_without_a_usable_gpu_no_language_model_is_announced(open_page: Open) -> None:
    page = await open_page("/", **fake(slow=60))  # the only adapter is emulated
    await expect(part(page, "notice")).to_contain_text("EfficientNet")
    await expect(part(page, "notice")).not_to_contain_text("SmolLM2")


@pytest.mark.parametrize("fails", [False, True])
async def test_bar_goes_on_behind_a_client_that_is_ready(open_page: Open, fails: bool) -> None:
    page = await open_page("/?adapter=software", **fake(behind={"fails": fails}))
    badge, progress, notice = (part(page, name) for name in ("badge", "progress", "notice"))
    await expect(badge).to_have_attribute("data-source", "cloud")
    await expect(badge).to_contain_text("still being loaded")
    await expect(progress).to_have_attribute("data-stage", "weights")
    await describe(page)
    await expect(progress).to_be_visible()
    await expect(notice).to_be_visible()
    await page.evaluate("fake.arrive()")
    # A download that fails reports no end; the bar leaves all the same.
    await expect(badge).to_have_attribute("data-source", "cloud" if fails else "device")
    await expect(progress).to_be_hidden()
    await expect(notice).to_be_hidden()


@pytest.mark.parametrize(("length", "said"), [("12345678", "12.3 MB"), (None, "size unknown")])
async def test_a_model_file_by_its_address_is_announced_too(
    open_page: Open, site: str, length: str | None, said: str
) -> None:
    page = await open_page("", fake=True, init=SAVE_DATA)
    headers = {"content-length": length} if length else {}
    await page.context.route("**/some.gguf", lambda route: route.fulfill(status=200, headers=headers, body=""))
    await page.goto(f"{site}/?model=files/some.gguf&vision=none&adapter=software")
    await expect(part(page, "notice")).to_contain_text(f"some.gguf: {said}")
    await expect(page.get_by_text("does not say which languages")).to_be_visible()
    await expect(page.locator("option[value=zh]")).to_be_enabled()


SAVE_DATA = "Object.defineProperty(navigator, 'connection', { value: { saveData: true } });"


async def test_save_data_asks_before_it_downloads(open_page: Open) -> None:
    page = await open_page("/", fake=True, init=SAVE_DATA)
    await expect(part(page, "notice")).to_contain_text("asks to save data")
    await part(page, "photo").set_input_files(photo())
    assert await calls(page, "create") == []
    await part(page, "download").click()
    await expect(part(page, "labels").locator("li")).to_have_count(5)
    assert await calls(page, "create") == [["create", {}]]


async def test_save_data_may_leave_the_writing_to_the_cloud(open_page: Open) -> None:
    page = await open_page("/", fake=True, init=SAVE_DATA)
    await part(page, "cloud-only").click()
    await expect(part(page, "badge")).to_have_attribute("data-source", "cloud")
    await expect(part(page, "badge")).to_contain_text("You chose to let the cloud write.")
    assert await calls(page, "create") == [["create", {"mode": "only_in_cloud"}]]


@pytest.mark.parametrize(
    ("lang", "code", "source", "says"),
    [
        ("en", "no_device", "cloud", "Told in English."),
        ("zh", "no_device", "cloud", "本设备不再继续这段文案，由云端撰写。"),
        ("zh", "cloud_unavailable", "device", "云端不再继续这段文案，由本设备撰写。"),
        ("zh", "device_lost", "device", "正在重新准备本设备，文案稍后继续。"),
        ("zh", "pressure", "cloud", "本设备资源紧张，这段文案由云端撰写。"),
    ],
)
async def test_a_change_of_sides_is_told_as_one_and_not_as_an_error(
    open_page: Open, lang: str, code: str, source: str, says: str
) -> None:
    page = await open_page(f"/?lang={lang}", **fake(tells={"code": code, "source": source}))
    await describe(page)
    await part(page, "write").click()
    await expect(page.get_by_text(says, exact=True)).to_be_visible()
    await written(page)
    await expect(part(page, "error")).to_be_hidden()


async def test_an_error_is_told_as_one_where_a_status_has_the_same_code(open_page: Open) -> None:
    failure = {"code": "busy", "message": "Told in English."}
    page = await open_page("/?lang=zh", **fake(fail={"generate": failure}))
    await describe(page)
    await part(page, "write").click()
    await expect(part(page, "error")).to_contain_text("另一项任务仍在进行，请稍后重试。")


@pytest.mark.parametrize("lang", ["en", "zh"])
async def test_the_head_cuts_no_word_and_the_badge_is_as_wide_as_its_words(open_page: Open, lang: str) -> None:
    page = await open_page(f"/?lang={lang}", **fake(), viewport={"width": 1280, "height": 800})
    await expect(part(page, "badge")).to_have_attribute("data-source", "device")
    # The page writes the reason anew every second: it is set and measured in one go.
    measured = """(why) => {
      document.querySelector(".badge .why").textContent = why;
      const at = (name) => document.querySelector(name).getBoundingClientRect().toJSON();
      const { scrollWidth, clientWidth, scrollHeight, clientHeight } = document.querySelector(".tagline");
      const cut = scrollWidth > clientWidth || scrollHeight > clientHeight;
      return { tagline: at(".tagline"), brand: at(".brand"), badge: at(".badge"), cut };
    }"""
    await expect(page.locator(".tagline")).to_be_visible()
    wide = await page.evaluate(measured, "· " + "A long reason with figures. " * 3)
    assert not wide["cut"]
    assert wide["tagline"]["height"] < 45  # two lines
    await page.set_viewport_size({"width": 360, "height": 700})
    narrow = await page.evaluate(measured, "")
    assert narrow["badge"]["y"] > narrow["brand"]["y"] + narrow["brand"]["height"]
    assert narrow["badge"]["width"] < 200


async def test_save_data_offers_no_cloud_where_the_text_must_stay_here(open_page: Open) -> None:
    page = await open_page("/?mode=only_on_device", fake=True, init=SAVE_DATA)
    await expect(part(page, "download")).to_be_visible()
    await expect(part(page, "cloud-only")).to_be_hidden()


async def test_served_below_a_folder(open_page: Open, watch: Watch) -> None:
    """Every address of the page is relative to it: nothing but the folder is asked for."""
    page = await open_page("", fake=True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    dist = ROOT / "dist"

    async def serve(route: Any) -> None:
        path = route.request.url.split("/sub/")[1].split("?")[0] or "index.html"
        await route.fulfill(path=HERE_FAKE if path == "tandem.js" else dist / path)

    await page.route("http://127.0.0.1:9/sub/**", serve)
    await page.goto("http://127.0.0.1:9/sub/")
    await describe(page)
    assert [url for url in asked if not url.startswith("http://127.0.0.1:9/sub/")] == []
    assert any(url.endswith("/sub/models/index.json") for url in asked)
