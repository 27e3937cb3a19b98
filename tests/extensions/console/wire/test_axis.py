"""One time axis, why a request was late, and what is at hand: the page in a real Chromium."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
import requests

from app.extensions.console.page import report_of
from tests.extensions.console.conftest import until
from tests.extensions.console.watched import WatchedEngine
from tests.extensions.console.wire.console_page import (
    KEY,
    ConsolePage,
    complete,
    load,
    record_messages,
    wait_for_change,
    wait_for_js,
    wait_for_setting,
    wait_for_state,
)
from tests.extensions.console.wire.test_figures import SERVER
from tests.running_server import RunningServer, running_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]
FLAGS = ("--console", "--admin-key=secret", "--max-num-seqs=1", "--time-to-first-token=400ms")
UNDER_WAY = "[...model.bars.values()].filter(bar => bar.arrival <= AT && (bar.end === null || bar.end >= AT))"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(*FLAGS, "--inter-token-latency=20ms", "--seed=7") as running:
        yield running


@pytest.fixture
def console(browser: Browser, server: RunningServer) -> Iterator[ConsolePage]:
    console = ConsolePage(
        browser.new_context(viewport={"width": 1280, "height": 900}).new_page(), server
    )
    console.open()
    yield console
    console.close()


def change_settings(server: RunningServer, **values: Any) -> None:
    body = {name.replace("_", "-"): value for name, value in values.items()}
    answer = requests.post(f"{server.url}/admin/config", json=body, headers=KEY, timeout=20)
    assert answer.status_code == 200, answer.text


def milliseconds(text: str) -> float:
    """Milliseconds of a figure of the page."""
    value, unit = text.split()
    return float(value) * (1000 if unit == "s" else 1)


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hundred requests in twenty seconds, four at a time, as a page of its own."""
    watched = WatchedEngine(
        slots=4, max_waiting=1000, time_to_first_token=0.1, inter_token_latency=0.02
    )
    rng = Random(3)
    watched.observer.mark("setting", "time-to-first-token: 100ms")
    picture = watched.observer.picture(SERVER)
    frames = []
    for turn in range(80):
        if turn == 40:
            watched.observer.mark("pause", "pause <b>")
        for number in range(rng.randrange(3, 5)):
            watched.ask(f"r{turn}-{number}", max_tokens=rng.randrange(2, 20))
        watched.harness.clock.advance(0.25)
        frames.append(watched.observer.frame())
    path = tmp_path_factory.mktemp("recording") / "run.html"
    path.write_text(report_of(picture, frames))
    return path


@pytest.fixture
def report(browser: Browser, recording: Path) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 1600})
    complaints = list[str]()
    record_messages(page, complaints)
    page.goto(recording.as_uri())
    wait_for_state(page, "report")
    yield page
    page.close()
    assert complaints == []


def test_request_details_explain_a_delay_during_and_after_the_request(
    console: ConsolePage, server: RunningServer
) -> None:
    ids = list[str]()

    def complete_late() -> None:
        ids.append(complete(server, max_tokens=5)["id"])

    ahead = threading.Thread(target=complete, args=(server,), kwargs={"max_tokens": 80})
    late = threading.Thread(target=complete_late)
    ahead.start()
    console.wait_for("model.figures.running === 1", "no request runs")
    late.start()
    waiting = "[...model.bars.values()].find(bar => bar.phase === QUEUED && bar.end === null)"
    console.wait_for(f"{waiting} !== undefined", "no request waits")
    console.page.evaluate(f"views.detail.show({waiting}.number, model)")
    console.wait_for_text("for a slot: 1 of 1 taken", "#detail .sentence")
    assert "(so far)." in console.page.inner_text("#detail .sentence")
    ahead.join()
    late.join()
    wait_for_change(console.page, "#detail .sentence", "(so far)")
    answer = requests.get(f"{server.url}/admin/requests/{ids[0]}", headers=KEY, timeout=20).json()
    assert console.page.inner_text("#detail .sentence") == answer["sentence"]
    (choice,) = answer["choices"]
    names = console.page.locator("#detail .phases > span").all_inner_texts()
    numbers = console.page.locator("#detail .phases .number").all_inner_texts()
    shown_ms = [milliseconds(text) for text in numbers]
    phases_ms = [phase["to_ms"] - phase["from_ms"] for phase in choice["phases"]]
    assert names[0] == choice["phases"][0]["phase"]
    assert shown_ms == [pytest.approx(phase_ms, rel=0.01, abs=0.5) for phase_ms in phases_ms]
    width = (
        "(it => it.getBoundingClientRect().width / it.parentElement.getBoundingClientRect().width)"
    )
    shares = console.page.evaluate(
        f"[...document.querySelectorAll('#detail .track i')].map({width})"
    )
    total_ms = choice["total_ms"]
    assert shares == [pytest.approx(phase_ms / total_ms, abs=0.01) for phase_ms in phases_ms]


def test_details_of_a_recorded_request_show_phases_but_no_causes(report: Page) -> None:
    late = "[...model.bars.values()].reduce((a, b) => (b.first - b.arrival > a.first - a.arrival ? b : a))"
    report.evaluate(f"views.detail.show({late}.number, model)")
    sentence = report.inner_text("#detail .sentence")
    assert "in queue" in sentence and "Recordings contain no causes." in sentence
    waited = report.evaluate(f"(bar => bar.parts[1][1] - bar.arrival)({late})")
    assert milliseconds(report.inner_text("#detail .phases .number >> nth=0")) == pytest.approx(
        waited, rel=0.01
    )


def test_dragging_on_one_chart_zooms_all_charts(report: Page) -> None:
    box = report.locator("#steps-time").bounding_box()
    assert box is not None
    left, right = report.evaluate("[axis.left, RIGHT]")
    first, last = report.evaluate("[axis.range.from, axis.range.to]")
    assert last - first == pytest.approx(20_000, abs=1)

    def x(at_ms: float) -> float:
        assert box is not None
        return float(
            box["x"] + left + (box["width"] - left - right) * (at_ms - first) / (last - first)
        )

    report.mouse.move(x(4000), box["y"] + 30)
    report.mouse.down()
    report.mouse.move(x(6000), box["y"] + 30, steps=4)
    report.mouse.up()
    wait_for_js(report, "axis.zoomed", "the charts are not zoomed")
    shown = report.evaluate("[axis.range.from, axis.range.to]")
    assert shown == [pytest.approx(4000, abs=40), pytest.approx(6000, abs=40)]
    inside = (
        "[...model.bars.values()].filter(bar => bar.arrival "
        "<= axis.range.to && bar.end >= axis.range.from)"
    )
    assert report.evaluate(f"views.bars.rows.length === {inside}.length")
    points = report.evaluate("views.curves.map(it => it.points.length)")
    assert points == [points[0]] * 5 and 8 <= points[0] <= 11, (
        "four frames a second, and one at each side"
    )
    report.mouse.move((x(first) + x(last)) / 2, box["y"] + 30)
    lines = report.evaluate(
        "axis.parts.filter(it => it.place.id !== 'overview').map(it => it.line.hidden ? null :"
        " it.line.getBoundingClientRect().x)"
    )
    assert len(lines) == 10 and max(lines) - min(lines) < 1, "one cursor through all parts"
    moment = "recorder.points.filter(p => p.at <= axis.cursor).pop().figures.running"
    assert report.inner_text("#charts b >> nth=0") == str(report.evaluate(moment))
    report.keyboard.press("+")
    assert report.evaluate("axis.length") == pytest.approx((shown[1] - shown[0]) / 2, rel=0.01)
    report.keyboard.press("Escape")
    assert report.evaluate("[axis.range.from, axis.range.to]") == [first, last]


def test_hundreds_of_requests_are_shown_as_a_density_chart(report: Page) -> None:
    assert report.evaluate("model.bars.size") >= 240
    assert report.evaluate("views.bars.dense")
    at_ms = 12_120.0
    count = report.evaluate(UNDER_WAY.replace("AT", str(at_ms)) + ".length")
    density = report.evaluate(
        "(({counts, failed}) => counts.reduce((sum, row) => sum + row[Math.floor("
        f"({at_ms} - axis.range.from) / axis.length * (failed.length - 2))], 0))(views.bars.density.counted)"
    )
    assert density == pytest.approx(count, abs=3) and count > 10
    box = report.locator("#requests").bounding_box()
    assert box is not None
    x = report.evaluate(f"axis.x({at_ms}, views.bars.canvas.clientWidth)")
    report.mouse.move(box["x"] + x, box["y"] + 100)
    assert "queued" in report.inner_text("#tip")
    report.mouse.click(box["x"] + x, box["y"] + 100)
    assert not report.evaluate("views.bars.dense")
    assert report.evaluate("views.bars.rows.length") == pytest.approx(count, abs=3)
    assert "show all" in report.inner_text("#all-rows")
    report.keyboard.press("Escape")
    assert report.evaluate("views.bars.dense")
    report.select_option("#as", "rows")
    assert not report.evaluate("views.bars.dense")


def test_annotations_of_a_recording_are_shown_as_text(report: Page) -> None:
    assert report.evaluate("model.marks.map(([, kind, text]) => [kind, text])") == [
        ["setting", "time-to-first-token: 100ms"],
        ["pause", "pause <b>"],
    ]
    assert report.locator("#requests-time .mark-pause").inner_text() == "pause <b>"
    assert report.locator("#overview .marks i").count() == 2


def test_annotations_of_setting_changes_are_kept_for_later_pages(
    console: ConsolePage, server: RunningServer, tmp_path: Path
) -> None:
    load(server, rate=5, seconds=1, prompt_tokens=20, output_tokens=2)
    change_settings(server, fault_rules=[{"action": "error", "status": 503, "every": 10}])
    change_settings(server, fault_rules=None, inter_token_latency="25ms")
    for action in ("pause?mode=keep", "resume"):
        requests.post(f"{server.url}/admin/console/{action}", headers=KEY, timeout=20)
    marks = "model.marks.slice(-6).map(([, kind, text]) => `${kind} ${text}`)"
    wanted = [
        "load load of 5 requests/s for 1 s",
        'fault fault-rules: [{"action":"error","status":503,"every":10}]',
        "setting inter-token-latency: 25ms",
        "fault fault-rules: null",
        "pause pause",
        "pause resume",
    ]

    def are_marks_complete() -> bool:
        return sorted(console.model(marks)) == sorted(wanted)

    until(are_marks_complete, f"marks are {console.model(marks)}")
    console.page.reload()
    console.wait_for_state("serving")
    assert sorted(console.model(marks)) == sorted(wanted)
    text = console.model("recorder.text()")
    console.page.evaluate("openReport(recorder.text())")
    console.wait_for_state("report")
    assert sorted(console.model(marks)) == sorted(wanted) and "load of 5" in text
    change_settings(server, inter_token_latency="20ms")


@pytest.mark.parametrize("width", [1280, 1920])
def test_main_controls_are_above_the_fold_and_take_effect(
    browser: Browser, server: RunningServer, width: int
) -> None:
    console = ConsolePage(browser.new_page(viewport={"width": width, "height": 900}), server)
    console.open()
    fold = console.model("document.querySelector('#bottom').getBoundingClientRect().top")
    for name in ("Send load", "Pause"):
        box = console.page.locator("#strip").get_by_role("button", name=name).bounding_box()
        assert box is not None and box["y"] + box["height"] < fold
    for name in ("Fault", "Scheduling policy"):
        box = console.page.locator("#strip").get_by_label(name, exact=True).bounding_box()
        assert box is not None and box["y"] + box["height"] < fold
    strip = console.page.locator("#strip")
    strip.get_by_label("Scheduling policy").select_option("priority")
    wait_for_setting(server, "scheduling-policy", "priority")
    console.wait_for_text("scheduling-policy priority", "#strip .chips")
    strip.get_by_label("Scheduling policy").select_option("fcfs")
    strip.get_by_label("Fault", exact=True).select_option("503 for every 10th request")
    wait_for_setting(server, "fault-rules", [{"action": "error", "status": 503, "every": 10}])
    strip.get_by_label("Fault", exact=True).select_option("no fault")
    wait_for_setting(server, "fault-rules", None)
    strip.get_by_role("button", name="Pause").click()
    console.wait_for_state("paused")
    strip.get_by_role("button", name="Resume").click()
    console.wait_for_state("serving")
    strip.get_by_label("Seconds").fill("1")
    strip.get_by_role("button", name="Send load").click()
    console.wait_for("model.load && model.load.sent > 0", "nothing is sent")
    requests.delete(f"{server.url}/admin/console/load", headers=KEY, timeout=20)
    console.close()


def test_setting_changed_in_another_console_is_shown(
    console: ConsolePage, server: RunningServer
) -> None:
    def chip_names() -> list[str]:
        chips = console.page.locator("#strip .chips button").all_inner_texts()
        return [chip.split(" ")[0] for chip in chips]

    def is_each_difference_shown() -> bool:
        return set(chip_names()) == differ

    def is_prefill_overhead_shown() -> bool:
        return "prefill-overhead" in chip_names()

    def is_prefill_overhead_gone() -> bool:
        return "prefill-overhead" not in chip_names()

    knobs = requests.get(f"{server.url}/admin/console/knobs", headers=KEY, timeout=20).json()
    differ = {knob["name"] for knob in knobs if knob["value"] != knob["default"]}
    assert {"max-num-seqs", "time-to-first-token", "seed"} <= differ
    until(is_each_difference_shown, "other chips are shown")
    console.page.locator("#strip .chips button", has_text="time-to-first-token").click()
    console.page.wait_for_selector("#knob-time-to-first-token")
    change_settings(server, time_to_first_token="350ms", prefill_overhead="1ms")
    until(is_prefill_overhead_shown, "the change of another console is not shown")
    assert console.page.input_value("#knob-time-to-first-token") == "350ms"
    change_settings(server, time_to_first_token="400ms", prefill_overhead="0s")
    until(is_prefill_overhead_gone, "the chip of the default is still shown")
