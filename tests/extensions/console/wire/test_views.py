"""Lessons, the table of requests, selections, routes and percentiles: the page in a real Chromium."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.extensions.console.wire.console_page import (
    ConsolePage,
    complete,
    violations,
    wait_for_count,
    wait_for_js,
    wait_for_state,
    wait_for_text,
)
from tests.running_server import RunningServer, running_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]
LESSONS = (
    *("kv-cache-full", "preemption", "chunked-prefill"),
    *("prefix-hit", "long-prompt", "prefill-decode-apart"),
)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    """A server without a profile or a KV cache, as `make run` starts it."""
    with running_server("--console") as running:
        yield running


@pytest.fixture
def page(browser: Browser, server: RunningServer) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    seen = ConsolePage(context.new_page(), server)
    yield seen.page
    seen.close()


def opened(page: Page, server: RunningServer, name: str) -> None:
    page.goto(f"{server.url}/console#lesson-{name}")
    page.wait_for_selector("#lessons summary")
    wait_for_state(page, "report")


def test_play_button_on_the_lessons_page_starts_a_lesson(page: Page, server: RunningServer) -> None:
    page.goto(f"{server.url}/console")
    wait_for_state(page, "serving")
    page.get_by_role("link", name="Lessons").click()
    wait_for_count(page, "#lessons article", 6)
    links = page.locator("#lessons h2 a")
    hashes = [link.get_attribute("href") for link in links.all()]
    assert hashes == [f"#lesson-{name}" for name in LESSONS]
    assert page.is_hidden("#tiles")
    page.get_by_role("button", name="Play: Preemption").click()
    wait_for_state(page, "report")
    assert page.evaluate("location.hash") == "#lesson-preemption"
    wait_for_js(page, "stopped !== null", "the lesson does not play")
    preempted = "[...shown().bars.values()].some(bar => bar.preempted)"
    wait_for_js(page, preempted, "nothing is preempted")
    wait_for_js(page, "stopped === recorder.last", "the lesson does not end")
    page.get_by_role("link", name="Next").click()
    wait_for_text(page, "#lessons h2", "Chunked")
    page.get_by_role("link", name="Back to live").click()
    wait_for_state(page, "serving")


@pytest.mark.parametrize("name", LESSONS)
def test_link_to_a_lesson_opens_the_charts_of_the_lesson(
    page: Page, server: RunningServer, name: str
) -> None:
    opened(page, server, name)
    assert page.evaluate("model.bars.size === model.over.length && model.over.length > 8")
    assert page.inner_text("#lessons p >> nth=0").count(". ") == 1
    assert page.is_visible("#requests")
    assert page.is_visible("#tiles")


@pytest.mark.parametrize("name", LESSONS)
def test_charts_that_a_lesson_explains_come_first(
    page: Page, server: RunningServer, name: str
) -> None:
    opened(page, server, name)
    columns = page.evaluate(
        "[...document.querySelectorAll('.columns > .column')].map(column => [...column.children]"
        ".map(it => (it.getAttribute('aria-labelledby') || '').replace('-title', '')))"
    )
    panels, curves = page.evaluate("[lessons.lesson.panels, lessons.lesson.curves]")
    for column in columns:
        explained = [panel for panel in panels if panel in column]
        assert column[: len(explained)] == explained
    titles = page.locator("#charts h3").all_inner_texts()
    assert titles[: len(curves)] == curves
    first = page.locator(f"[aria-labelledby='{panels[0]}-title']").bounding_box()
    assert first is not None
    fold = page.evaluate("$('bottom').getBoundingClientRect().top")
    assert first["y"] + first["height"] <= fold


def test_lesson_can_be_paused_and_continued(page: Page, server: RunningServer) -> None:
    opened(page, server, "long-prompt")
    title = "A long prompt next to streams"
    paused_ms, first_ms = page.evaluate(
        """async () => {
            lessons.player.click();
            while (stopped <= recorder.first) await new Promise(requestAnimationFrame);
            lessons.player.click();
            return [stopped, recorder.first];
        }"""
    )
    assert paused_ms > first_ms
    page.get_by_role("button", name=f"Continue: {title}").wait_for()
    assert "1.22 s" not in page.inner_text("#lessons")
    assert page.evaluate("stopped") == paused_ms
    page.keyboard.press("Space")
    wait_for_js(page, f"stopped > {paused_ms}", "the lesson does not continue")
    page.evaluate("stop(recorder.last)")
    page.get_by_role("button", name=f"Play again: {title}").wait_for()
    figures = page.locator(".lesson-figures dd").all_inner_texts()
    assert figures == ["1.22 s", "12.9 ms", "1.26 s"]


def test_tooltip_names_the_phase_of_a_running_request(page: Page, server: RunningServer) -> None:
    opened(page, server, "long-prompt")
    page.evaluate("stop(1500)")
    wait_for_js(page, "views.bars.model.at === 1500", "another moment is shown")
    box = page.locator("#requests").bounding_box()
    assert box is not None
    x = box["x"] + page.evaluate("axis.x(1400, views.bars.canvas.clientWidth)")
    page.mouse.move(x, box["y"] + page.evaluate("HEAD + ROW / 2"))
    wait_for_text(page, "#tip", "prefill for 471 ms so far, 24,000 of 24,000 prompt tokens")
    page.evaluate("stop(2000)")
    wait_for_text(page, "#tip", "prefill for 971 ms so far")
    page.mouse.move(x, box["y"] + page.evaluate("HEAD + ROW * 1.5"))
    wait_for_text(page, "#tip", "no token for 959 ms so far")
    page.evaluate("stop(recorder.last)")
    wait_for_text(page, "#tip", "no token for 1.22 s: a step with 24,000 prompt tokens")


def test_lesson_with_two_engines_has_a_chart_heading_for_each_engine(
    page: Page, server: RunningServer
) -> None:
    opened(page, server, "prefill-decode-apart")
    rows = page.evaluate("views.bars.rows.map(row => row.heading || row.id)")
    streams = [f"r{number}" for number in range(9, 0, -1)]
    assert rows == ["Engine A: prefill", "r9", "Engine B: decode", *streams]
    phases = page.evaluate(
        "[1, 3].map(k => views.bars.rows[k].parts.map(([phase]) => PHASES[phase]))"
    )
    assert phases == [
        ["queued", "prefill", "decode"],
        ["queued", "transfer", "prefill", "decode"],
    ]
    page.focus("#requests")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("views.bars.chosen") == 1001
    page.keyboard.press("ArrowDown")
    assert page.evaluate("views.bars.chosen") == 9, "the name of an engine is not a request"


def test_moving_to_another_time_stops_the_playback_of_a_lesson(
    page: Page, server: RunningServer
) -> None:
    opened(page, server, "long-prompt")
    page.get_by_role("button", name="Play: A long prompt next to streams").click()
    wait_for_js(page, "stopped > recorder.first", "the lesson does not play")
    page.evaluate("stop(1000)")
    wait_for_js(page, "lessons.timer === 0", "the lesson still plays")
    assert page.evaluate("stopped") == 1000


def test_lessons_are_numbered(page: Page, server: RunningServer) -> None:
    page.goto(f"{server.url}/console#lessons")
    wait_for_count(page, "#lessons article", 6)
    titles = page.locator("#lessons article h2").all_inner_texts()
    assert [title.partition(" ")[0] for title in titles] == ["1.", "2.", "3.", "4.", "5.", "6."]


@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_lessons_and_their_tables_have_no_accessibility_violations(
    browser: Browser, server: RunningServer, theme: Any, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=theme)
    page.goto(f"{server.url}/console#lessons")
    wait_for_count(page, "#lessons article", 6)
    assert violations(page) == []
    opened(page, server, "prefix-hit")
    page.select_option("#as", "table")
    page.evaluate("axis.select({ from: 1000, to: 2000 })")
    assert page.is_visible("#sums")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page) == []
    page.close()


def test_console_fits_on_a_phone_without_cutting_off_text(
    browser: Browser, server: RunningServer
) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    page.goto(f"{server.url}/console")
    wait_for_count(page, ".tile", 10)
    fold = page.evaluate("$('bottom').getBoundingClientRect().top")
    assert page.evaluate("$('requests').getBoundingClientRect().bottom") <= fold
    assert page.is_visible("#model")
    rows = page.evaluate(
        "[...document.querySelectorAll('.tile')].map(it => it.getBoundingClientRect().top)"
    )
    assert sorted(rows.count(top) for top in set(rows)) == [5, 5], "tiles fill their rows"
    cut = (
        "[...document.querySelectorAll('.tile strong, .tile span, #strip button, #model, input')]"
        ".filter(it => it.offsetWidth && it.scrollWidth > it.clientWidth + 1 && it.clientWidth)"
        ".map(it => it.textContent)"
    )
    assert page.evaluate(cut) == []
    page.close()


def test_request_table_can_be_sorted_and_filtered(page: Page, server: RunningServer) -> None:
    opened(page, server, "prefix-hit")
    page.select_option("#as", "table")
    heading = page.locator("#request-table th button", has_text="first token")
    heading.click()
    column = (
        "[...document.querySelectorAll('#request-table tbody tr')]"
        ".map(row => row.children[8].textContent)"
    )
    values = page.evaluate(column)
    assert len(values) == 12
    numbers = [float(value.split()[0]) for value in values]
    assert numbers == sorted(numbers, reverse=True)
    heading.click()
    assert page.evaluate(column) == values[::-1]
    page.fill("#filter", "cached>100")
    wait_for_js(page, f"{column}.length === 6", "the rows are not filtered")
    page.locator("#request-table tbody button").first.click()
    assert page.is_visible("#detail")


def test_selecting_a_time_range_shows_the_sums_of_the_range(
    page: Page, server: RunningServer
) -> None:
    opened(page, server, "long-prompt")
    box = page.locator("#steps-time").bounding_box()
    assert box is not None
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 300, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + 400, box["y"] + 50, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    page.wait_for_selector("#sums")
    assert page.evaluate("axis.zoomed") is None
    start, end = page.evaluate("[axis.selected.from, axis.selected.to]")
    # Eight streams decode all the time, or the long prompt is computed.
    decode = f"sumsOf(model, {start}, {end}).phases.find(row => row[0] === 'decode')[2]"
    assert page.evaluate(decode) == pytest.approx(8 * (end - start), rel=0.15)
    assert "decode" in page.inner_text("#sums-rows")
    page.keyboard.press("Escape")
    page.wait_for_selector("#sums", state="hidden")
    length = page.evaluate("axis.length")
    page.keyboard.press("w")
    assert page.evaluate("axis.length") == pytest.approx(length / 2)
    first = page.evaluate("axis.range.from")
    page.keyboard.press("a")
    assert page.evaluate("axis.range.from") == pytest.approx(first - length / 8)
    page.keyboard.press("d")
    assert page.evaluate("axis.range.from") == pytest.approx(first)
    page.keyboard.press("s")
    assert page.evaluate("axis.length") == pytest.approx(length)


def test_route_table_can_be_downloaded_as_csv(
    page: Page, server: RunningServer, tmp_path: Path
) -> None:
    for _ in range(3):
        complete(server, max_tokens=3)
    page.goto(f"{server.url}/console")
    wait_for_text(page, "#routes", "/v1/completions")
    with page.expect_download() as download:
        page.click("#routes-csv")
    download.value.save_as(file := tmp_path / "routes.csv")
    rows = list(csv.DictReader(file.read_text().splitlines()))
    assert [row["route"] for row in rows] == ["/v1/completions", "total"]
    assert {row["requests"] for row in rows} == {"3"}
    assert {row["failed"] for row in rows} == {"0"}


def test_comparison_shows_the_differences_by_percentile(
    page: Page, server: RunningServer, tmp_path: Path
) -> None:
    files: list[str] = []
    for name in ("chunked-prefill", "long-prompt"):
        opened(page, server, name)
        file = tmp_path / f"{name}.jsonl"
        file.write_text(page.evaluate("recorder.text()"))
        files.append(str(file))
        page.goto("about:blank")
    page.goto(f"{server.url}/console")
    wait_for_state(page, "serving")
    page.set_input_files("#compare-files", files)
    wait_for_state(page, "comparison")
    section = page.locator("section[aria-label='Differences by percentile']")
    assert section.locator("canvas").count() == 3
    assert "p50: " in section.inner_text()
    rows = page.evaluate("compared.quantiles.find(it => it.name === 'E2E').rows")
    first_ms, second_ms = rows[49][1:3]
    assert rows[49][3] == pytest.approx(second_ms - first_ms)
    assert violations(page) == []
