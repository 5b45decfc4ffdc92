"""The page for everybody: keyboard, screen reader, narrow windows, light and dark, English and Chinese."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from playwright.async_api import Page, expect

from .conftest import Open
from .page_parts import part, photo, written

WEB = Path(__file__).resolve().parents[2] / "web"


def sentences(code: str) -> dict[str, str]:
    table: dict[str, str] = json.loads((WEB / f"i18n/{code}.json").read_text())
    return table


async def test_both_languages_have_every_sentence_with_the_same_places() -> None:
    english, chinese = sentences("en"), sentences("zh")
    assert english.keys() == chinese.keys()
    for key, sentence in english.items():
        assert sorted(re.findall(r"\{\w+\}", sentence)) == sorted(re.findall(r"\{\w+\}", chinese[key])), key


async def test_every_key_that_the_code_names_exists() -> None:
    code = "".join(file.read_text() for file in (WEB / "app").rglob("*.js"))
    named = set(re.findall(r"""(?:say\([^;]*?, |\bt\(|\? |: )"((?:[a-z]+\.)+[a-z_.]+)\"""", code))
    assert len(named) > 40
    assert named - sentences("en").keys() == set()


@pytest.mark.parametrize(
    ("query", "locale", "heading", "tag"),
    [
        ("", "en-US", "Product copy from a photo", "en"),
        ("", "zh-CN", "看图写商品文案", "zh-Hans"),
        ("", "fr-FR", "Product copy from a photo", "en"),
        ("?lang=zh", "en-US", "看图写商品文案", "zh-Hans"),
        ("?lang=xx", "zh-TW", "看图写商品文案", "zh-Hans"),
    ],
)
async def test_language_is_chosen(open_page: Open, query: str, locale: str, heading: str, tag: str) -> None:
    page = await open_page(f"/{query}", fake=True, locale=locale)
    await expect(page.get_by_role("heading", level=1)).to_have_text(heading)
    await expect(page.locator("html")).to_have_attribute("lang", tag)


async def test_switching_the_language_keeps_everything(open_page: Open) -> None:
    page = await open_page("/", fake=True)
    await part(page, "photo").set_input_files(photo())
    await page.get_by_label("Your own keywords").fill("oak")
    await part(page, "write").click()
    await written(page)
    text = await part(page, "copy").inner_text()
    await page.get_by_role("button", name="中文").click()
    await expect(part(page, "write")).to_have_text("撰写文案")
    await expect(part(page, "copy")).to_have_text(text)
    await expect(page.get_by_label("您自己的关键词")).to_have_value("oak")
    assert page.url.endswith("?lang=zh")
    # The labels are the model's own words and stay English; all else on the page has been translated.
    rest = await page.evaluate(
        """() => {
          const copy = document.body.cloneNode(true);
          for (const each of copy.querySelectorAll(
            "[lang=en], [data-tandem=copy], .brand, .languages, script, [aria-live], .caption")) each.remove();
          const texts = document.createTreeWalker(copy, NodeFilter.SHOW_TEXT);
          let all = "";
          while (texts.nextNode()) all += ` ${texts.currentNode.data}`;
          return all;
        }"""
    )
    words = set(re.findall(r"[A-Za-z]{3,}", rest))
    allowed = {"JPEG", "PNG", "WebP", "AVIF", "GPU", "Fake", "MiB", "Ctrl", "Python", "SmolLM", "Instruct"}
    allowed |= {"EfficientNet", "Lite", "ImageNet", "classes"}
    assert words - allowed == set()


@pytest.mark.parametrize("lang", ["en", "zh"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_narrow_window_needs_no_sideways_scrolling(open_page: Open, lang: str, scheme: str) -> None:
    size = {"width": 320, "height": 640}
    page = await open_page(f"/?lang={lang}", fake=True, viewport=size, color_scheme=scheme)
    await part(page, "photo").set_input_files(photo(name="a-very-long-file-name-without-any-break-in-it-at-all.png"))
    await part(page, "write").click()
    await written(page)
    assert await page.evaluate("document.documentElement.scrollWidth") == 320
    outside = await page.evaluate(
        """() => [...document.querySelectorAll("main *, header *, footer *")]
          .filter((each) => each.checkVisibility() && !each.closest(".visually-hidden"))
          .filter((each) => { const box = each.getBoundingClientRect(); return box.left < 0 || box.right > 320.5; })
          .map((each) => each.outerHTML.slice(0, 120))"""
    )
    assert outside == []


CONTRAST = """() => {
  const parse = (color) => {
    const [r, g, b, a = 1] = color.match(/[\\d.]+/g).map(Number);
    return { rgb: [r, g, b], a };
  };
  const light = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const { rgb, a } = parse(getComputedStyle(each).backgroundColor);
      if (a === 1) return rgb;
    }
    return [255, 255, 255];
  };
  const bad = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || element.closest(":disabled, .visually-hidden, .skip, option")) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color).rgb), light(ground(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) bad.push(`${ratio.toFixed(2)} ${element.outerHTML.slice(0, 100)}`);
  }
  return bad;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_contrast_of_every_text(open_page: Open, scheme: str) -> None:
    """WCAG 2.2, 1.4.3: at least 4.5 to 1."""
    failing = 'window.fake = { fail: { describe: { code: "bad_image", message: "Not a picture." } } }'
    page = await open_page("/", fake=True, color_scheme=scheme, init=failing)
    await part(page, "photo").set_input_files(photo())
    await expect(part(page, "error")).to_be_visible()
    assert await page.evaluate(CONTRAST) == []
    await part(page, "error").get_by_role("button", name="Try again").click()
    await expect(part(page, "labels").locator("li")).to_have_count(5)
    await part(page, "write").click()
    await written(page)
    await page.mouse.move(0, 0)
    assert await page.evaluate(CONTRAST) == []


async def focus_order(page: Page, steps: int) -> list[str]:
    """Presses Tab, and notes what has the focus and whether that can be seen."""
    order = []
    for _ in range(steps):
        await page.keyboard.press("Tab")
        order.append(
            await page.evaluate(
                """() => {
                  const it = document.activeElement;
                  const mark = it.closest("[data-tandem]")?.dataset.tandem;
                  const name = it.name || (mark ?? it.textContent.trim());
                  const shown = [it, it.closest("label"), it.nextElementSibling].filter(Boolean)
                    .some((each) => getComputedStyle(each).outlineStyle === "solid");
                  return shown ? name : `${name} (invisible)`;
                }"""
            )
        )
    return order


async def test_keyboard_alone_goes_all_the_way(open_page: Open) -> None:
    page = await open_page("/", fake=True)
    await part(page, "photo").set_input_files(photo())
    await expect(part(page, "labels").locator("li")).to_have_count(5)
    await page.evaluate("document.activeElement.blur()")
    order = await focus_order(page, 11)
    assert order == [
        "Skip to the content",
        "Tandem",
        "English",
        "中文",
        "photo",
        "Choose a file",
        "Take a photo",
        "tone",
        "language",
        "length",
        "keywords",
    ]
    await page.keyboard.type("oak")
    await page.keyboard.press("Tab")
    assert await page.evaluate("document.activeElement.dataset.tandem") == "write"
    await page.keyboard.press("Enter")
    await written(page)
    assert await page.evaluate("document.activeElement.dataset.tandem") == "write"
    assert await focus_order(page, 3) == ["copy", "Copy", "Regenerate"]


async def test_focus_goes_to_stop_while_writing_and_back(open_page: Open) -> None:
    page = await open_page("/", fake=True, init="window.fake = { slow: 40, words: 300 }")
    await page.get_by_label("Your own keywords").fill("oak")
    await part(page, "write").focus()
    await page.keyboard.press("Space")
    await expect(part(page, "stop")).to_be_focused()
    await expect(part(page, "copy")).to_contain_text("word3")
    await page.keyboard.press("Space")
    await expect(part(page, "write")).to_be_focused()


async def test_screen_reader_hears_sentences_and_no_tokens(open_page: Open) -> None:
    page = await open_page("/", fake=True, init="window.fake = { slow: 15, words: 160 }")
    await page.get_by_label("Your own keywords").fill("oak")
    await page.evaluate(
        """() => {
          window.said = [];
          const region = document.querySelector(".copy-block [aria-live=polite]");
          new MutationObserver((records) => {
            for (const record of records) for (const node of record.addedNodes) window.said.push(node.textContent);
          }).observe(region, { childList: true });
        }"""
    )
    await part(page, "write").click()
    await expect(part(page, "copy")).to_have_attribute("aria-busy", "true")
    await written(page)
    said = await page.evaluate("window.said")
    assert said[0] == "Writing…"
    assert said[-1] == "The copy is complete."
    assert 2 <= len(said) - 2 <= 8
    assert all(each.endswith(".") for each in said[1:])
    assert " ".join(said[1:-1]) == await part(page, "copy").inner_text()
    await expect(part(page, "copy")).to_have_attribute("aria-busy", "false")


async def test_every_control_has_a_name_and_landmarks_exist(open_page: Open) -> None:
    page = await open_page("/", fake=True)
    await part(page, "write").wait_for()
    snapshot = await page.locator("body").aria_snapshot()
    assert not re.search(r"^\s*- (button|textbox|combobox|radio|link)\s*(:|$)", snapshot, re.MULTILINE), snapshot
    for role in ("banner", "main", "contentinfo"):
        await expect(page.get_by_role(role)).to_have_count(1)  # type: ignore[arg-type]
    await expect(page.get_by_role("textbox", name="The copy")).to_have_count(1)
