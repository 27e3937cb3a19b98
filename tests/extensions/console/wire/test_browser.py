"""The console in a real Chromium shows the state of a real server, changes it, and does not grow."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from tests.extensions.console.conftest import until
from tests.extensions.console.wire.console_page import (
    KEY,
    ConsolePage,
    complete,
    load,
    metric,
    record_messages,
    violations,
    wait_for_change,
    wait_for_js,
    wait_for_match,
    wait_for_setting,
    wait_for_state,
    wait_until_idle,
)
from tests.running_server import RunningServer, running_server
from workbench.runs.simulate import run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Route

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]
FLAGS = (
    "--console",
    "--enable-scale-out",
    "--admin-key=secret",
    "--profile=qwen3-14b-h100",
    "--kv-index",
    "--zmq-endpoint=",
)
SMALL = ("--max-num-seqs", "8", "--max-model-len", "2048", "--num-gpu-blocks-override", "400")
HOSTILE = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\"'&amp; end"
COUNTED = "recorder.samples.flatMap(it => (it.NAME || []).filter((_, k) => k % 2)).reduce((a, b) => a + b)"
LONG = "a prompt that is long enough to have a block or two of its own, in the cache"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(*FLAGS, *SMALL) as running:
        yield running


@pytest.fixture
def console(browser: Browser, server: RunningServer) -> Iterator[ConsolePage]:
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    console = ConsolePage(context.new_page(), server)
    yield console
    console.close()
    assert console.hosts <= {f"127.0.0.1:{server.port}"}, "other servers were called"


def test_console_shows_the_values_of_the_metrics_after_the_key_is_entered(
    console: ConsolePage, server: RunningServer
) -> None:
    console.page.goto(f"{server.url}/console")
    console.page.fill("#key-text", "secret")
    console.page.keyboard.press("Enter")
    console.wait_for_state("serving")
    console.ignore_status("401")
    load(server, rate=30, seconds=2, prompt_tokens=120, output_tokens=20, groups=2, shared=64)
    console.wait_for(
        "model.load && !model.load.active && model.load.sent > 0",
        "requests do not end",
    )
    wait_until_idle(server)
    metrics = {
        "model.figures.generated": "generation_tokens_total",
        "model.figures.prompt": "prompt_tokens_total",
        "model.figures.queries": "prefix_cache_queries_total",
        "model.figures.hits": "prefix_cache_hits_total",
        "model.figures.running": "num_requests_running",
        "model.figures.cache_usage": "kv_cache_usage_perc",
        COUNTED.replace("NAME", "ttft"): "time_to_first_token_seconds_count",
        COUNTED.replace("NAME", "itl"): "inter_token_latency_seconds_count",
    }

    def are_figures_equal() -> bool:
        return all(
            console.model(name) == metric(server, family) for name, family in metrics.items()
        )

    until(are_figures_equal, "the figures differ from the metrics")
    shown = console.model("model.figures")
    ended = console.model("[...model.bars.values()].filter(bar => bar.reason === 'length').length")
    assert ended >= console.model("model.load.sent")
    assert console.tile("Running") == "0"
    assert console.tile("Prefix hits") == f"{shown['hits'] / shown['queries'] * 100:.0f} %"
    held = console.model("[...model.blocks].filter(state => state > 1).length")
    assert held == round(shown["cache_usage"] * 399)


def test_hostile_ids_and_prompts_are_shown_as_text(
    console: ConsolePage, server: RunningServer
) -> None:
    """Marks that reverse the direction of writing are shown as characters."""
    prompt = HOSTILE + "\u202e gnissel \u2066" + "\u0627\u0644\u0633" * 200
    console.open()
    body = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 2}, "request_id": prompt}
    answer = requests.post(f"{server.url}/inference/v1/generate", json=body, timeout=20)
    assert answer.status_code == 200, answer.text
    console.show(complete(server, prompt=prompt, max_tokens=5, user="<b>me</b>")["id"])
    console.wait_for_text("script", "#detail")
    assert HOSTILE in console.page.inner_text("#detail pre >> nth=0")
    assert console.page.locator("#detail b, #detail script, #detail img").count() == 0
    assert console.model("window.hacked") is None
    ids = console.model("[...model.bars.values()].map(bar => bar.id)")
    assert not any(mark in request_id for request_id in ids for mark in "\u202e\u2066")
    assert max(map(len, ids)) <= 128
    assert console.model("document.documentElement.scrollWidth") <= 1280


def test_open_request_details_update_while_the_request_runs(
    console: ConsolePage, server: RunningServer
) -> None:
    console.open()
    load(server, rate=100, seconds=1, prompt_tokens=20, output_tokens=1500)
    running = "[...model.bars.values()].find(bar => bar.end === null && bar.tokens > 2)"
    console.wait_for(f"{running} !== undefined", "no request runs")
    number = console.model(f"{running}.number")
    console.page.evaluate(f"views.detail.show({number}, model)")
    reply = "#detail section:has(h3:text-is('Reply')) pre"
    console.page.wait_for_selector(reply)
    first_text = console.page.inner_text(reply)
    console.page.evaluate("document.querySelector('#detail pre').focus()")

    def has_reply_grown() -> bool:
        return len(console.page.inner_text(reply)) > len(first_text)

    until(has_reply_grown, "the reply does not grow")
    assert console.page.inner_text(reply).startswith(first_text)
    assert console.model("document.activeElement.tagName") == "PRE", "the focus stays"
    console.page.keyboard.press("5")
    console.wait_for_text("a slot")
    assert "8 of 8 slots are in use" in console.page.inner_text("#tab-body")
    requests.delete(f"{server.url}/admin/console/load", headers=KEY, timeout=20)
    wait_until_idle(server)


def test_console_check_tab_shows_how_often_each_script_rule_was_used(
    browser: Browser, tmp_path: Path
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("rules: [{name: greet <b>, then: {text: hello}}, {name: never, then: pass}]")
    with running_server("--console", "--script", str(path)) as server:
        console = ConsolePage(browser.new_page(), server)
        console.open()
        complete(server)
        console.tab("check")
        wait_for_match(console.page, "#tab-body", r"greet <b>\s+1\s")
        path.write_text("rules: [{then: {txt: a}}]")
        console.wait_for_text("unknown key 'txt'")
        console.press("Reset counters")
        wait_for_match(console.page, "#tab-body", r"greet <b>\s+0\s")
        console.close()


def test_keyboard_selects_requests_without_stopping_the_load(
    console: ConsolePage, server: RunningServer
) -> None:
    console.open()
    plan = {
        "rate": 20,
        "seconds": 60,
        "prompt_tokens": 20,
        "output_tokens": 20,
        "groups": 0,
        "shared": 0,
    }
    console.page.evaluate("plan => { Object.assign(panels.plan, plan); }", plan)
    console.page.get_by_role("button", name="Send load").first.focus()
    console.page.keyboard.press("Enter")
    console.wait_for("document.activeElement.id === 'requests'", "the focus stays on the button")
    console.wait_for(
        "model.load && model.load.active && model.load.answered",
        "nothing is sent",
    )
    console.page.keyboard.press("ArrowDown")
    console.page.keyboard.press("Enter")
    console.page.wait_for_selector("#detail")
    sent = console.model("model.load.sent")
    console.wait_for(f"model.load.sent > {sent}", "the load was stopped")
    console.page.get_by_role("button", name="Stop load").click()
    console.wait_for("!model.load.active", "the load goes on")
    wait_until_idle(server)


def test_annotation_labels_do_not_overlap_the_duration_column(
    console: ConsolePage, server: RunningServer
) -> None:
    console.open()
    load(server, rate=5, seconds=0.2, prompt_tokens=20, output_tokens=2)
    words = "[...document.querySelectorAll('#requests-time .marks i')].filter(it => it.textContent)"
    console.wait_for(f"{words}.length", "the mark has no words")
    wait_until_idle(server)
    column = "(box => box.right - RIGHT + 2)($('requests').getBoundingClientRect())"
    right = f"Math.max(...{words}.map(it => it.getBoundingClientRect().right))"
    assert console.model(f"{right} <= {column}")
    # The mark moves away from the end, with its words.
    console.page.evaluate("$('span').value = '10'")
    for seconds in (10, 30, 60):
        console.page.evaluate(f"$('span').value = '{seconds}'; render()")
        assert console.model(f"{right} <= {column}"), seconds
    # A time of the clock at the very end of a zoomed time leaves room for the word above the
    # column.
    console.page.evaluate("axis.zoom(model.at - 900, model.at)")
    drawn = """(() => {
        const ends = [], pen = views.bars.canvas.getContext("2d"), fillText = pen.fillText;
        pen.fillText = function (text, x, y) {
            const width = this.measureText(text).width;
            if (text !== "took" && this.textAlign === "center" && y < HEAD) ends.push(x + width / 2);
            fillText.call(this, text, x, y);
        };
        views.bars.draw();
        delete pen.fillText;
        return [Math.max(...ends), views.bars.canvas.clientWidth - 4 - pen.measureText("took").width];
    })()"""
    end, took = console.model(drawn)
    assert end < took


@pytest.mark.parametrize("timing", ["requests", "steps"])
def test_charts_start_with_the_history_of_the_server(browser: Browser, timing: str) -> None:
    flags = (
        ("--inter-token-latency", "20ms")
        if timing == "requests"
        else ("--profile", "qwen3-14b-h100")
    )
    with running_server("--console", "--admin-key=secret", *flags) as server:
        for _ in range(3):
            complete(server, prompt=LONG, max_tokens=40)
        refused = requests.post(
            f"{server.url}/v1/completions", json={"prompt": "x", "max_tokens": -1}, timeout=20
        )
        assert refused.status_code == 400
        console = ConsolePage(browser.new_page(), server)
        console.open()
        ran_ms = console.model("Math.min(...[...model.bars.values()].map(bar => bar.arrival))")
        opened_ms = console.model("recorder.first")
        past = f"recorder.points.filter(point => point.at < {opened_ms})"
        assert console.model(f"{past}[0].at") <= ran_ms or ran_ms < console.model("PAST_STEP_MS")
        assert console.model("axis.whole.from") == console.model(f"{past}[0].at")
        total = (
            "points.reduce((sum, p, k) => sum + (k ? p.rates.NAME "
            "* (p.at - points[k - 1].at) / 1000 : 0), 0)"
        )
        for name, expected in (
            ("generated", metric(server, "generation_tokens_total")),
            ("ended", 3),
            ("refused", 1),
        ):
            first_figures = console.model("recorder.points[0].figures")
            if name == "ended":
                counted = first_figures["length"] + first_figures["stop"]
            else:
                counted = first_figures[name]
            shown = counted + console.model(
                f"(points => {total.replace('NAME', name)})(recorder.points)"
            )
            assert shown == pytest.approx(expected, abs=0.01), name
        assert console.model(f"{past}.every(point => point.figures.cache_usage === null)"), (
            "the history has no cache usage"
        )
        decodes = console.model("model.steps.reduce((sum, step) => sum + step[3], 0)")
        if timing == "requests":
            generated = "model.figures.generated - recorder.points[0].figures.generated"
            # A frame may arrive between two readings, so both numbers are read in one.
            difference = (
                f"Math.abs(model.steps.reduce((sum, step) => sum + step[3], 0) - ({generated}))"
            )
            console.wait_for(f"{difference} < 0.01", "decodes differ from tokens")
            assert decodes > 50
        else:  # a step of a prompt computes the first token of its request
            assert decodes == 3 * 39
        wait_for_change(console.page, "#steps-last", "no steps in this time")
        saved = console.model("recorder.text()")
        console.page.evaluate("text => openReport(text)", saved)
        wait_for_state(console.page, "report")
        assert console.model("recorder.points[0].at") < opened_ms
        assert console.model("model.steps.length")
        console.close()


def test_console_controls_change_the_settings_of_the_server(
    console: ConsolePage, server: RunningServer
) -> None:
    console.open()
    console.tab("tune")
    for typed_rate, message, rate in (
        ("100", "set", 100),
        ("101", "must be between 0 and 100", 100),
        ("0", "set", 0),
    ):
        console.page.fill("#knob-failure-injection-rate", typed_rate)
        console.page.keyboard.press("Tab")
        console.wait_for_text(message)
        wait_for_setting(server, "failure-injection-rate", rate)
    console.ignore_status("400")
    console.tab("break")
    console.page.locator("#tab-body select").select_option("503 for every 10th request")
    console.page.get_by_role("button", name="Apply").first.click()
    rules = [{"action": "error", "status": 503, "every": 10}]
    wait_for_setting(server, "fault-rules", rules)
    console.press("Clear")
    wait_for_setting(server, "fault-rules", None)
    console.tab("operate")
    for button, state in (
        ("Pause", "paused"),
        ("Resume", "serving"),
        ("Sleep", "sleeping"),
        ("Wake up", "serving"),
    ):
        console.page.locator("#tab-body").get_by_role("button", name=button).click()
        console.wait_for_state(state)
    console.press("Reset")
    console.wait_for("[...model.blocks].every(state => state === 0)", "blocks stay cached")


def test_late_response_does_not_overwrite_the_chosen_fault_rules(console: ConsolePage) -> None:
    console.open()
    held_requests: list[Route] = []

    def hold(route: Route) -> None:
        held_requests.append(route)

    console.page.route("**/admin/config", hold)
    with console.page.expect_request("**/admin/config"):
        console.tab("break")
    console.page.locator("#tab-body select").select_option("503 for every 10th request")
    with console.page.expect_response("**/admin/config") as response:
        held_requests[0].continue_()
    response.value.finished()
    rules = json.loads(console.page.input_value("#tab-body textarea[aria-label^='Fault rules']"))
    assert rules == [{"action": "error", "status": 503, "every": 10}]


def test_every_console_tab_shows_its_own_content(
    console: ConsolePage, server: RunningServer
) -> None:
    console.open()
    complete(server, prompt=LONG, max_tokens=30)
    for name, word in (
        ("load", "requests per second"), ("break", "Random errors"), ("cache", "stored"),
        ("cache", "copies"), ("check", "client"), ("wait", "adapter slots"), ("ranks", "serving"),
        ("wait", "slots are in use"), ("tune", "set at startup"),
    ):  # fmt: skip
        console.tab(name)
        console.wait_for_text(word)
    console.tab("cache")
    console.page.get_by_label("Prompt to score").fill(LONG)  # the tab of before has texts, too
    console.press("Score")
    wait_for_match(console.page, "#tab-body [role=status]", r"127\.0\.0\.1:\d+\s+[1-9]")


def test_keyboard_opens_requests_switches_tabs_and_pauses_the_server(
    console: ConsolePage, server: RunningServer
) -> None:
    console.open()
    load(server, rate=20, seconds=1, output_tokens=10)
    console.wait_for("model.bars.size > 5", "no bars")
    console.page.focus("#requests")
    console.page.keyboard.press("ArrowDown")
    console.page.keyboard.press("ArrowDown")
    assert "prompt tokens" in console.page.inner_text("#chosen")
    console.page.keyboard.press("Enter")
    assert console.page.is_visible("#detail")
    console.page.keyboard.press("Escape")
    assert console.page.is_hidden("#detail")
    # Of a request that had ended before the page was opened, no more is known than its bar shows.
    console.ignore_status("404")
    console.page.keyboard.press("/")
    console.page.keyboard.type("cmpl")
    assert console.page.input_value("#filter") == "cmpl"
    console.page.fill("#filter", "")
    console.page.keyboard.press("Escape")
    console.page.keyboard.press("3")
    assert console.page.get_attribute("#tab-tune", "aria-selected") == "true"
    console.page.keyboard.press("p")
    console.wait_for_state("paused")
    console.page.keyboard.press("p")
    console.wait_for_state("serving")
    first_theme = console.page.get_attribute("html", "data-theme")
    console.page.keyboard.press("t")
    assert console.page.get_attribute("html", "data-theme") != first_theme


def test_console_shows_a_past_time_and_reopens_a_saved_recording(
    console: ConsolePage, server: RunningServer, tmp_path: Path
) -> None:
    console.open()
    load(server, rate=10, seconds=3, output_tokens=100, groups=2, shared=64)
    console.wait_for("model.figures.running > 2", "no request runs")
    moment = """({
        at: MODEL.at, running: MODEL.figures.running, blocks: [...MODEL.blocks].join(""),
        tokens: [...MODEL.bars.values()].map(bar => bar.tokens),
    })"""
    recorded = console.model(moment.replace("MODEL", "model"))
    console.wait_for(f"model.at > {recorded['at']} + 3000", "time stands still")
    console.page.evaluate(f"stop({recorded['at']})")
    console.wait_for_state("recorded")
    assert console.model(moment.replace("MODEL", "shown()")) == recorded
    assert console.tile("Running") == f"{recorded['running']:.0f}"
    console.page.click("#live")
    console.wait_for_state("serving")
    with console.page.expect_download() as download:
        console.page.click("#save")
    download.value.save_as(page := tmp_path / "recording.html")
    file = tmp_path / "recording.jsonl"
    recording = page.read_text("utf-8").partition('id="recording">')[2]
    file.write_text(recording.partition("</script>")[0])  # the form of older files
    assert json.loads(file.read_text().splitlines()[0])["version"] == 2
    last = console.model("model.figures.generated")
    console.page.set_input_files("#file", str(file))
    console.wait_for_state("report")
    assert 0 < console.model("model.figures.generated") <= last
    assert console.model("model.bars.size") > 8
    file.write_text('{"version": 99}')
    console.page.set_input_files("#file", str(file))
    console.wait_for_text("a different version (99;", "#state")
    for wrong in (
        "no JSON",
        '{"version": 2, "frame": {}}',
        '{"version": 2, "names": 5, "frame": {"at": 1}}',
        "<p>",
    ):
        file.write_text(wrong)
        console.page.set_input_files("#file", str(file))
        console.wait_for_text("not a recording of the console", "#state")
    assert console.model("model.bars.size") > 8, "the page is unchanged"


def test_simulation_page_shows_requests_and_pods(browser: Browser, tmp_path: Path) -> None:
    file = tmp_path / "run.html"
    complaints = list[str]()
    assert run(["--rate", "8", "--seconds", "30", "--pods", "2", "--html", str(file)]) == 0
    page = browser.new_page()
    record_messages(page, complaints)
    page.goto(file.as_uri())
    wait_for_state(page, "report")
    assert page.evaluate("model.over.length") == page.evaluate("model.bars.size") > 150
    page.evaluate("stop(10000)")
    wait_for_js(page, "shown().figures.running > 5", "no request runs at this moment")
    assert [tab.inner_text() for tab in page.locator("#tabs button").all()] == [
        "Queue",
        "Cache events",
    ]
    assert "slots are in use" in page.inner_text("#tab-body")
    assert page.inner_text("#steps-title") == "Pods" and page.evaluate("shown().pods.length") == 2
    page.close()
    assert complaints == []


def test_simulation_page_opens_at_the_time_with_the_most_requests(
    browser: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "run.html"
    assert run(["--rate", "8", "--seconds", "30", "--html", str(file)]) == 0
    page = browser.new_page()
    page.goto(file.as_uri())
    wait_for_state(page, "report")
    requests_at = "recorder.points.map(point => point.figures.running + point.figures.waiting)"
    busiest = page.evaluate(f"Math.max(...{requests_at})")
    assert page.evaluate("shown().figures.running + shown().figures.waiting") == busiest > 10
    assert page.evaluate("stopped") < page.evaluate("recorder.last")
    tiles = {
        tile.locator("span").first.inner_text(): tile.locator("small").inner_text()
        for tile in page.locator(".tile").all()
    }
    sums = {
        name: re.findall(r"^(?:mean|peak) ([\d.,]+)", line, re.MULTILINE)
        for name, line in tiles.items()
    }
    means = {name: float(numbers[0].replace(",", "")) for name, numbers in sums.items() if numbers}
    peaks = {name: float(numbers[1].replace(",", "")) for name, numbers in sums.items() if numbers}
    assert list(means) == [
        *("Running", "Waiting", "KV cache", "Output", "Requests", "First token", "Between tokens")
    ]
    assert peaks["Running"] == page.evaluate(
        "Math.max(...recorder.points.map(point => point.figures.running))"
    )
    # Requests under way times time are the sum of the latencies (Little's law).
    bars = "[...model.bars.values()]"
    latencies_ms = page.evaluate(f"{bars}.reduce((sum, bar) => sum + bar.end - bar.arrival, 0)")
    length_ms = page.evaluate("recorder.last - recorder.first")
    assert means["Running"] + means["Waiting"] == pytest.approx(latencies_ms / length_ms, rel=0.05)
    ttft_ms = page.evaluate(f"{bars}.map(bar => bar.first - bar.arrival)")
    assert means["First token"] == pytest.approx(sum(ttft_ms) / len(ttft_ms), rel=0.01)
    assert peaks["First token"] == pytest.approx(max(ttft_ms), rel=0.01)
    tokens = page.evaluate("model.figures.generated")
    assert means["Output"] == pytest.approx(tokens / length_ms * 1000, rel=0.01)
    page.get_by_role("button", name="End").click()
    wait_for_js(page, "shown().figures.running === 0", "the end is not shown")
    page.close()


@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_console_fits_the_window_and_is_accessible(
    browser: Browser, server: RunningServer, theme: Any, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=theme)
    console = ConsolePage(page, server)
    console.open()
    assert page.get_attribute("html", "data-theme") == theme
    assert console.model("document.documentElement.scrollWidth") <= width
    console.show(complete(server, prompt=LONG, max_tokens=30)["id"])
    for tab in ("", "load", "break", "tune", "operate", "wait", "cache", "check", "ranks"):
        if tab:
            console.model("views.detail.hide()")
            console.tab(tab)
            wait_for_match(console.page, "#tab-body", ".")
        assert violations(page) == []
    console.close()


def test_all_curves_begin_at_the_same_moment(browser: Browser) -> None:
    """Of the time before the page was opened, the server keeps no use of the KV cache."""
    with running_server("--console", "--admin-key=secret", "--profile=qwen3-14b-h100") as server:
        for _ in range(3):
            complete(server, prompt=LONG, max_tokens=40)
        console = ConsolePage(browser.new_page(viewport={"width": 1280, "height": 1000}), server)
        console.open()
        complete(server, prompt=LONG, max_tokens=40)
        console.wait_for("recorder.points.some(p => p.rates.itl)", "no token was seen")
        begins = console.model("""(() => {
            const begins = views.curves.map(() => new Map()),
                pen = CanvasRenderingContext2D.prototype,
                { lineTo, moveTo } = pen;
            const note = (draw) => function (x, y) {
                const k = views.curves.findIndex((chart) => chart.canvas === this.canvas);
                if (k >= 0)
                    begins[k].set(this.strokeStyle, Math.min(x, begins[k].get(this.strokeStyle) ?? x));
                draw.call(this, x, y);
            };
            Object.assign(pen, { lineTo: note(lineTo), moveTo: note(moveTo) });
            render();
            Object.assign(pen, { lineTo, moveTo });
            return views.curves.flatMap(({ series }, k) =>
                series.map(([, colour]) => begins[k].get(COLOURS[colour]) ?? null));
        })()""")
        assert len(begins) == 13
        assert max(begins) - min(begins) < 1
        dashed = "views.curves.filter(chart => !chart.gap.hidden).map(chart => chart.title)"
        assert console.model(dashed) == ["Between tokens", "KV cache"]
        console.close()


def test_routes_show_their_failures_whole_at_1280_pixels(
    console: ConsolePage, server: RunningServer
) -> None:
    console.open()
    load(server, rate=30, seconds=1, prompt_tokens=20, output_tokens=60)
    complete(server, prompt=LONG, max_tokens=30)
    refused = requests.post(
        f"{server.url}/v1/chat/completions",
        json={"messages": [{"role": "user", "content": "x"}], "max_tokens": -1},
        timeout=20,
    )
    assert refused.status_code == 400
    wait_for_match(console.page, "#routes", "/v1/chat/completions")
    console.wait_for("model.load && !model.load.active", "the load does not end")
    console.page.evaluate("views.routes.at = -Infinity; views.routes.key = ''; render()")
    edge = console.model("$('routes').getBoundingClientRect().right")
    ends = console.model("""[...document.querySelectorAll("#routes tr")].map((row) => {
        const range = document.createRange();
        range.selectNodeContents(row.lastElementChild);
        return range.getBoundingClientRect().right;
    })""")
    assert len(ends) >= 4
    assert max(ends) <= edge
    wait_until_idle(server)


def test_fault_and_policy_can_be_chosen_on_a_phone(browser: Browser, server: RunningServer) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    console = ConsolePage(page, server)
    console.open()
    for label in ("Fault", "Scheduling policy"):
        selector = page.get_by_label(label, exact=True).first
        assert selector.is_visible(), label
        box = selector.bounding_box()
        assert box is not None
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390, label
        assert box["width"] >= 60, label
    console.close()


def test_console_memory_stays_within_limits_after_thousands_of_requests(browser: Browser) -> None:
    """What the page keeps of bars and elements, and the server of requests, stays within its
    limits.
    """
    with running_server(
        "--console", "--admin-key=secret", "--max-num-seqs=64", "--inter-token-latency=1ms"
    ) as server:
        console = ConsolePage(browser.new_page(), server)
        console.open()
        sizes = []
        over = "model.load !== null && !model.load.active && model.load.sent > 0"
        while len(sizes) < 3 or metric(server, "request_success_total") < 4000:
            load(server, rate=500, seconds=4.2, prompt_tokens=20, output_tokens=2)
            console.wait_for(over, "the load does not end", 50)
            console.page.evaluate("model.load = null")
            sizes.append(console.model("[model.bars.size, document.querySelectorAll('*').length]"))
        bars, elements = zip(*sizes, strict=True)
        assert max(bars) <= 2500 + 64 + 1000
        assert max(elements) - min(elements) < 60
        memory = requests.get(f"{server.url}/admin/memory", headers=KEY, timeout=20).json()[
            "caches"
        ]
        console_memory = memory["console requests"]
        assert console_memory["size_bytes"] <= console_memory["limit_bytes"]
        console.close()
