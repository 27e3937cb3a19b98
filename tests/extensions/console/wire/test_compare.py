"""Two runs beside each other in Chromium, and recordings as pages that open anywhere, with notes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from tests.extensions.console.wire.console_page import (
    record_messages,
    violations,
    wait_for_js,
    wait_for_state,
    wait_for_text,
    wait_for_texts,
)
from tests.running_server import ROOT, RunningServer, running_server
from workbench.runs.simulate import run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]
LOAD = [
    "--rate",
    "20",
    "--seconds",
    "10",
    "--pods",
    "4",
    "--input-tokens",
    "200",
    "--output-tokens",
    "32",
]
SHARED = [*LOAD, "--prefix-groups", "24", "--prefix-tokens", "3000"]
HOSTILE = (
    "</script><script>window.hacked=1</script><img src=x onerror='window.hacked=1'> \u202e note"
)
COUNTS = "bars: model.bars.size, over: model.over.length, steps: model.steps.length"
FIGURES = f"({{...model.figures, {COUNTS}, marks: model.marks}})"
LOSE_FRAMES = """() => {
    window.taken = take;
    window.sawLoad = window.sawEndOfLoad = false;
    take = (kind, text) => {
        const { load } = JSON.parse(text);
        if (load) window.sawEndOfLoad ||= window.sawLoad && !load.active;
        if (load) window.sawLoad ||= load.active;
    };
}"""
RECONNECT = """async () => {
    const reader = (await fetch("admin/console/stream")).body.getReader();
    take = (kind, text) => { if (kind === "picture") { take = taken; taken(kind, text); reader.cancel(); } };
    await read(reader);
}"""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--console", "--profile=qwen3-14b-h100", "--max-model-len=2048") as running:
        yield running


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The page of random against prefix-aware routing, and the sentence that the command prints."""
    folder = tmp_path_factory.mktemp("runs")
    for name in ("random", "prefix-aware"):
        (folder / f"{name}.yaml").write_text(f"policy: {name}")
    page = folder / "both.html"
    summary = folder / "both.json"
    files = [str(folder / f"{name}.yaml") for name in ("random", "prefix-aware")]
    assert run([*SHARED, "--compare", *files, "--html", str(page), "--json", str(summary)]) == 0
    return page, json.loads(summary.read_text())["sentence"]


@pytest.fixture
def complaints() -> Iterator[list[str]]:
    """What the browser's console says, which must be nothing."""
    messages = list[str]()
    yield messages
    assert messages == []


def opened(browser: Browser, url: str, complaints: list[str], state: str, **window: Any) -> Page:
    page = browser.new_page(**window)
    record_messages(page, complaints)
    page.goto(url)
    wait_for_state(page, state)
    return page


def saved(page: Page, file: Path) -> Path:
    with page.expect_download() as download:
        page.click("#save")
    download.value.save_as(file)
    return file


def drag(page: Page, begin: float, end: float) -> None:
    """Drags on the first chart, from one share of its time to another."""
    box = page.locator("#comparison canvas").first.bounding_box()
    assert box is not None
    left = box["x"] + 46
    y = box["y"] + box["height"] / 2
    page.mouse.move(left + begin * (box["width"] - 46), y)
    page.mouse.down()
    page.mouse.move(left + end * (box["width"] - 46), y, steps=4)
    page.mouse.up()


def load(server: RunningServer) -> None:
    plan = {"rate": 20, "seconds": 2, "output_tokens": 20, "groups": 2, "shared": 64}
    assert (
        requests.post(f"{server.url}/admin/console/load", json=plan, timeout=20).status_code == 200
    )


def live(browser: Browser, server: RunningServer, complaints: list[str]) -> Page:
    """The console of a server that has just had a small load."""
    page = opened(browser, f"{server.url}/console", complaints, "serving")
    ended_before = page.evaluate("model.over.length")
    load(server)
    is_load_over = f"model.load && !model.load.active && model.over.length > {ended_before} + 20"
    wait_for_js(page, is_load_over, "no load")
    wait_for_js(page, "model.figures.running === 0", "requests do not end")
    return page


def test_comparison_page_states_in_one_sentence_which_router_is_better(
    browser: Browser, simulated: tuple[Path, str], complaints: list[str]
) -> None:
    file, sentence = simulated
    page = opened(browser, file.as_uri(), complaints, "comparison")
    assert page.inner_text(".sentence") == sentence
    assert (
        sentence.startswith("prefix-aware is better: ")
        and "found in a cache instead of" in sentence
    )
    assert page.inner_text(".verdict .line").startswith("First difference after 0.")
    rows = [row.split("\t") for row in page.inner_text("#comparison .table").splitlines()]
    assert rows[0] == ["figure", "random", "prefix-aware", "difference"]
    # The recordings in the page have the figures that the command has calculated.
    for run_number, column in ((0, 1), (1, 2)):
        figures = page.evaluate(f"compared.runs[{run_number}].figures().figures")
        for name in (
            "TTFT p50",
            "TTFT p99",
            "TPOT p99",
            "E2E p90",
            "mean wait in the queue",
            "mean prefill",
        ):
            shown = float(
                next(row[column] for row in rows if row[0] == name).split()[0].replace(",", "")
            )
            assert figures[name] == pytest.approx(shown, rel=0.01, abs=0.5), name
    assert page.evaluate("compared.charts.length") == 7
    for number, requests_of_run in ((0, 200), (1, 200)):
        rows_of = f"compared.charts[{number}].series.map(row => row.values)"
        queued, prefill, decode = page.evaluate(rows_of)
        assert 0 < max(queued) < requests_of_run and len(queued) == 300
        assert all(a >= b >= c for a, b, c in zip(queued, prefill, decode, strict=True))
    drag(page, 0.25, 0.5)
    shown = page.evaluate(
        "[compared.range.from / compared.length, compared.range.to / compared.length]"
    )
    assert shown == pytest.approx([0.25, 0.5], abs=0.02)
    page.locator("#comparison canvas").first.dblclick()
    assert page.evaluate("compared.range.to === compared.length")
    page.get_by_role("button", name="Show alone").last.click()
    wait_for_state(page, "report")
    assert "prefix-aware" in page.inner_text("#model") and page.inner_text("#steps-title") == "Pods"
    page.get_by_role("button", name="Both runs").click()
    assert page.inner_text(".sentence") == sentence
    page.close()


def test_comparison_is_saved_with_notes_and_reopened(
    browser: Browser, simulated: tuple[Path, str], tmp_path: Path, complaints: list[str]
) -> None:
    page = opened(browser, simulated[0].as_uri(), complaints, "comparison")
    page.click("#notes-button")
    page.fill("#notes", HOSTILE)
    copy = saved(page, tmp_path / "copy.html")
    page.goto(copy.as_uri())
    wait_for_state(page, "comparison")
    assert page.inner_text(".sentence") == simulated[1] and page.input_value("#notes") == HOSTILE
    assert page.evaluate("window.hacked") is None
    page.close()


@pytest.mark.parametrize("is_lost", [False, True], ids=["all frames", "some frames are lost"])
def test_saved_page_of_a_live_run_shows_the_figures_of_the_run(
    browser: Browser, server: RunningServer, tmp_path: Path, is_lost: bool, complaints: list[str]
) -> None:
    """The page that is saved needs no server, and saves itself again."""
    page = live(browser, server, complaints)
    if is_lost:
        page.evaluate(LOSE_FRAMES)
        load(server)
        wait_for_js(page, "window.sawEndOfLoad", "the second load does not end")
        page.evaluate(RECONNECT)
        assert page.evaluate("model.marks.length") >= 2
    page.click("#notes-button")
    page.fill("#notes", HOSTILE)
    page.evaluate(
        "report = 'now'; render()"
    )  # no frame comes between the file and what it is held against
    saved_figures = page.evaluate(FIGURES)
    lines = page.locator("#ttft-line, #itl-line").all_inner_texts()
    first = saved(page, tmp_path / "first.html")
    page.close()
    for place in ("first", "second"):
        page = opened(browser, (tmp_path / f"{place}.html").as_uri(), complaints, "report")
        page.select_option("#window", "60")
        assert page.evaluate(FIGURES) == saved_figures
        wait_for_texts(page, "#ttft-line, #itl-line", lines)
        assert page.input_value("#notes") == HOSTILE and page.is_visible("#notes")
        assert page.evaluate("window.hacked") is None and page.is_hidden("#compare")
        saved(page, tmp_path / "second.html")
        page.close()
    assert "script-src 'sha256-" in first.read_text("utf-8")


def test_recorded_run_is_compared_with_a_simulated_and_a_live_run(
    browser: Browser, server: RunningServer, tmp_path: Path, complaints: list[str]
) -> None:
    page = live(browser, server, complaints)
    recorded = saved(page, tmp_path / "recorded.html")
    run_html = tmp_path / "simulated.html"
    assert run(["--rate", "20", "--seconds", "5", "--html", str(run_html)]) == 0
    page.set_input_files("#compare-files", [str(recorded), str(run_html)])
    wait_for_state(page, "comparison")
    assert "the loads differ in requests" in page.inner_text(".sentence")
    assert "request 1 has " in page.inner_text(".verdict .line")
    copy = saved(page, tmp_path / "copy.html")
    page.set_input_files("#compare-files", str(recorded))
    wait_for_text(page, ".verdict", "live")
    assert page.inner_text(".sentence").startswith("Neither is better: ")
    assert page.inner_text(".verdict .line").startswith("No difference: ")
    shorter = "parting(compared.runs[0], {...compared.runs[1], rows: compared.runs[1].rows.slice(0, 9)}).text"
    assert page.evaluate(shorter) == "only recorded has request 10"
    page.get_by_role("button", name="Back to live").click()
    wait_for_state(page, "serving")
    load(server)
    wait_for_js(page, "model.figures.running > 0", "no request runs")
    page.set_input_files("#file", str(copy))
    wait_for_state(page, "comparison")
    page.close()


def test_files_that_cannot_be_compared_are_reported_in_one_line(
    browser: Browser,
    server: RunningServer,
    simulated: tuple[Path, str],
    tmp_path: Path,
    complaints: list[str],
) -> None:
    page = live(browser, server, complaints)
    good = saved(page, tmp_path / "good.html")
    wrong = tmp_path / "wrong.jsonl"
    picture = json.loads(page.evaluate("recorder.text().split('\\n')[0]"))
    empty = {
        **picture,
        "frame": {**picture["frame"], "new": [], "ended": [], "phases": [], "tokens": []},
    }
    for text, message in (
        (
            '{"version": 99}',
            "wrong: This file has a different version (99; this page reads version 2).",
        ),
        ("no JSON", "wrong: This file is not a recording of a single run of the console."),
        (simulated[0].read_text("utf-8"), "wrong: This file is "),
        (json.dumps(empty), "wrong has no finished requests to compare"),
    ):
        wrong.write_text(text)
        page.evaluate("say('')")
        page.set_input_files("#compare-files", [str(good), str(wrong)])
        wait_for_text(page, "#state", message)
    complaints[:] = [line for line in complaints if "400" not in line]
    page.set_input_files("#compare-files", [str(good)] * 3)
    wait_for_text(page, "#state", "Select two recordings")
    for text in (
        '{"version": 2, "comparison": {}}',
        '{"version": 2, "comparison": {"rows": 5}, "runs": [[1, 2]]}',
    ):
        wrong.write_text(text)
        page.evaluate("say('')")
        page.set_input_files("#file", str(wrong))
        wait_for_text(page, "#state", "not a recording of the console")
    assert page.evaluate("model.over.length") > 20 and page.is_visible("#tiles"), (
        "the run is still shown"
    )
    row = [HOSTILE] * 5
    head = {
        "comparison": {"sentence": HOSTILE, "rows": [row]},
        "runs": [[HOSTILE, 1], [HOSTILE, 1]],
    }
    wrong.write_text("\n".join(map(json.dumps, ({"version": 2, **head, "notes": 5}, empty, empty))))
    page.set_input_files("#file", str(wrong))
    wait_for_state(page, "comparison")
    assert page.inner_text(".sentence") == HOSTILE.replace("\u202e", "\ufffd")
    assert page.evaluate("window.hacked") is None and page.locator("#comparison img").count() == 0
    page.keyboard.press("Escape")
    wait_for_state(page, "serving")
    page.close()


@pytest.mark.parametrize(
    ("name", "state"), [("console-example", "report"), ("compare-routing", "comparison")]
)
def test_example_pages_of_the_documentation_open_in_a_browser(
    browser: Browser, name: str, state: str, complaints: list[str]
) -> None:
    file = ROOT / "docs" / f"{name}.html"
    assert file.stat().st_size < 400_000
    page = opened(browser, file.as_uri(), complaints, state)
    assert page.is_visible("#notes") and page.input_value("#notes")
    page.close()


@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_comparison_page_is_accessible(
    browser: Browser, simulated: tuple[Path, str], theme: Any, width: int, complaints: list[str]
) -> None:
    window: dict[str, Any] = {"viewport": {"width": width, "height": 800}, "color_scheme": theme}
    page = opened(browser, simulated[0].as_uri(), complaints, "comparison", **window)
    page.click("#notes-button")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page) == []
    page.close()
