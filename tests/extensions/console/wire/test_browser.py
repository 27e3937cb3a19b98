"""The page in a real Chromium, against a real server:

it shows what is, it acts, and it does not grow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests

from app.extensions.lab.fidelity.simulate import run
from tests.extensions.console.conftest import until
from tests.running_server import RunningServer, running_server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Route

pytestmark = [pytest.mark.browser, pytest.mark.timeout(180)]
FLAGS = (
    "--console",
    "--enable-scale-out",
    "--admin-key=secret",
    "--profile=qwen3-14b-h100",
    "--kv-index",
)
FLAGS += ("--zmq-endpoint", "")
SMALL = ("--max-num-seqs", "8", "--max-model-len", "2048", "--num-gpu-blocks-override", "400")
KEY = {"X-Admin-Key": "secret"}
HOSTILE = "<script>window.hacked=1</script><img src=x onerror='window.hacked=1'>\"'&amp; end"
COUNTED = "recorder.samples.flatMap(it => (it.NAME || []).filter((_, k) => k % 2)).reduce((a, b) => a + b)"
LONG = "a prompt that is long enough to have a block or two of its own, in the cache"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server(*FLAGS, *SMALL) as running:
        yield running


class Seen:
    def __init__(self, page: Page, server: RunningServer) -> None:
        self.page, self.server = page, server
        self.complaints: list[str] = []
        page.on("console", self._told)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda it: self.asked.add(it.url.split("/")[2]))
        self.asked: set[str] = set()

    def _told(self, it: ConsoleMessage) -> None:
        if it.type in ("error", "warning"):
            self.complaints.append(f"{it.text} {it.location['url']}")

    def open(self, key: str = "secret") -> None:
        self.page.add_init_script(f"sessionStorage.setItem('key', '{key}')")
        self.page.goto(f"{self.server.url}/console")
        self.is_now("serving")

    def is_now(self, state: str) -> None:
        until(lambda: self.page.inner_text("#state") == state, f"it is not {state}")

    def is_over(self) -> None:
        self.page.context.close()
        assert self.complaints == []

    def forgives(self, status: str) -> None:
        """The browser tells of an error, which this is not."""
        self.complaints = [line for line in self.complaints if status not in line]

    def press(self, button: str) -> None:
        self.page.get_by_role("button", name=button).click()

    def shows(self, words: str, place: str = "#tab-body") -> None:
        until(lambda: words in self.page.inner_text(place), f"{words!r} is not shown")

    def tile(self, name: str) -> str:
        return str(self.page.locator(".tile", has_text=name).locator("strong").inner_text())

    def tab(self, name: str) -> None:
        self.page.click(f"#tab-{name}")

    def show(self, request_id: str) -> None:
        bar = f"[...model.bars.values()].find(bar => bar.end !== null && bar.id.startsWith('{request_id}'))"
        until(lambda: self.model(f"{bar} !== undefined"), f"{request_id} has not ended")
        self.page.evaluate(f"views.detail.show({bar}.number, model)")

    def model(self, expression: str) -> Any:
        return self.page.evaluate(expression)


@pytest.fixture
def seen(browser: Browser, server: RunningServer) -> Iterator[Seen]:
    context = browser.new_context(viewport={"width": 1280, "height": 1000})
    it = Seen(context.new_page(), server)
    yield it
    it.is_over()
    assert it.asked <= {f"127.0.0.1:{server.port}"}, "nothing was asked of anybody else"


def metric(server: RunningServer, name: str) -> float:
    lines = requests.get(f"{server.url}/metrics", timeout=20).text.splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"vllm:{name}{{")
    )


def complete(server: RunningServer, **body: Any) -> dict[str, Any]:
    asked = {"prompt": "Hello there", "ignore_eos": True, **body}
    answer = requests.post(f"{server.url}/v1/completions", json=asked, timeout=20)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def settings(server: RunningServer) -> dict[str, Any]:
    told: dict[str, Any] = requests.get(
        f"{server.url}/admin/config", headers=KEY, timeout=20
    ).json()
    return told


def load(server: RunningServer, **plan: Any) -> None:
    answer = requests.post(f"{server.url}/admin/console/load", json=plan, headers=KEY, timeout=20)
    assert answer.status_code == 200, answer.text


def quiet(server: RunningServer) -> None:
    until(
        lambda: (
            metric(server, "num_requests_running") + metric(server, "num_requests_waiting") == 0
        ),
        "it never rests",
    )


def test_the_key_is_asked_for_and_what_it_shows_is_what_the_metrics_say(
    seen: Seen, server: RunningServer
) -> None:
    seen.page.goto(f"{server.url}/console")
    seen.page.fill("#key-text", "secret")
    seen.page.keyboard.press("Enter")
    seen.is_now("serving")
    seen.forgives("401")
    load(server, rate=30, seconds=2, prompt_tokens=120, output_tokens=20, groups=2, shared=64)
    until(
        lambda: seen.model("model.load && !model.load.active && model.load.sent > 0"),
        "it never ends",
    )
    quiet(server)
    told = {
        "model.figures.generated": "generation_tokens_total",
        "model.figures.prompt": "prompt_tokens_total",
        "model.figures.queries": "prefix_cache_queries_total",
        "model.figures.hits": "prefix_cache_hits_total",
        "model.figures.running": "num_requests_running",
        "model.figures.cache_usage": "kv_cache_usage_perc",
        COUNTED.replace("NAME", "ttft"): "time_to_first_token_seconds_count",
        COUNTED.replace("NAME", "itl"): "inter_token_latency_seconds_count",
    }
    until(
        lambda: (
            not [
                name for name, family in told.items() if seen.model(name) != metric(server, family)
            ]
        ),
        "other figures are shown than those of the metrics",
    )
    shown = seen.model("model.figures")
    ended = seen.model("[...model.bars.values()].filter(bar => bar.reason === 'length').length")
    assert ended >= seen.model("model.load.sent")
    assert seen.tile("Running") == "0"
    assert seen.tile("Prefix hits") == f"{shown['hits'] / shown['queries'] * 100:.0f} %"
    held = seen.model("[...model.blocks].filter(state => state > 1).length")
    assert held == round(shown["cache_usage"] * 399)


def test_a_hostile_id_and_prompt_are_shown_as_they_are_and_do_not_turn_the_page(
    seen: Seen, server: RunningServer
) -> None:
    """Marks that turn the direction of writing are shown as what they are; all stands where it
    stood.
    """
    prompt = HOSTILE + "\u202e gnissel \u2066" + "\u0627\u0644\u0633" * 200
    seen.open()
    body = {"token_ids": [1, 2, 3], "sampling_params": {"max_tokens": 2}, "request_id": prompt}
    answer = requests.post(f"{server.url}/inference/v1/generate", json=body, timeout=20)
    assert answer.status_code == 200, answer.text
    seen.show(complete(server, prompt=prompt, max_tokens=5, user="<b>me</b>")["id"])
    seen.shows("script", "#detail")
    assert HOSTILE in seen.page.inner_text("#detail pre >> nth=0")
    assert seen.page.locator("#detail b, #detail script, #detail img").count() == 0
    assert seen.model("window.hacked") is None
    ids = seen.model("[...model.bars.values()].map(bar => bar.id)")
    assert (
        not any(mark in one for one in ids for mark in "\u202e\u2066") and max(map(len, ids)) <= 128
    )
    assert seen.model("document.documentElement.scrollWidth") <= 1280


def test_a_request_is_followed_while_it_is_looked_at(seen: Seen, server: RunningServer) -> None:
    seen.open()
    load(server, rate=100, seconds=1, prompt_tokens=20, output_tokens=1500)
    running = "[...model.bars.values()].find(bar => bar.end === null && bar.tokens > 2)"
    until(lambda: seen.model(f"{running} !== undefined"), "nothing runs")
    number = seen.model(f"{running}.number")
    seen.page.evaluate(f"views.detail.show({number}, model)")
    reply = "#detail section:has(h3:text-is('Reply')) pre"
    until(lambda: seen.page.locator(reply).count(), "no reply is shown")
    before = seen.page.inner_text(reply)
    seen.page.evaluate("document.querySelector('#detail pre').focus()")
    until(lambda: len(seen.page.inner_text(reply)) > len(before), "the reply stands still")
    assert seen.page.inner_text(reply).startswith(before)
    assert seen.model("document.activeElement.tagName") == "PRE", "who reads is not disturbed"
    seen.page.keyboard.press("5")
    seen.shows("a slot")
    assert "8 of 8 slots are in use" in seen.page.inner_text("#tab-body")
    requests.delete(f"{server.url}/admin/console/load", headers=KEY, timeout=20)
    quiet(server)


def test_scripts_are_told_rule_by_rule(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("rules: [{name: greet <b>, then: {text: hello}}, {name: never, then: pass}]")
    with running_server("--console", "--script", str(path)) as server:
        it = Seen(browser.new_page(), server)
        it.open()
        complete(server)
        it.tab("check")
        until(
            lambda: re.search(r"greet <b>\s+1\s", it.page.inner_text("#tab-body")),
            "no rule is told",
        )
        path.write_text("rules: [{then: {txt: a}}]")
        it.shows("unknown key 'txt'")
        it.press("Reset counters")
        until(
            lambda: re.search(r"greet <b>\s+0\s", it.page.inner_text("#tab-body")), "it counts on"
        )
        it.is_over()


def test_after_send_load_keys_explore_the_requests_and_do_not_stop_the_load(
    seen: Seen, server: RunningServer
) -> None:
    seen.open()
    plan = {
        "rate": 20,
        "seconds": 60,
        "prompt_tokens": 20,
        "output_tokens": 20,
        "groups": 0,
        "shared": 0,
    }
    seen.page.evaluate("plan => { Object.assign(panels.plan, plan); }", plan)
    seen.page.get_by_role("button", name="Send load").first.focus()
    seen.page.keyboard.press("Enter")
    until(
        lambda: seen.model("document.activeElement.id") == "requests",
        "the focus stays on the button",
    )
    until(
        lambda: seen.model("model.load && model.load.active && model.load.answered"),
        "nothing is sent",
    )
    seen.page.keyboard.press("ArrowDown")
    seen.page.keyboard.press("Enter")
    until(lambda: seen.page.is_visible("#detail"), "no request is shown")
    sent = seen.model("model.load.sent")
    until(lambda: seen.model("model.load.sent") > sent, "the load was stopped")
    seen.page.get_by_role("button", name="Stop load").click()
    until(lambda: not seen.model("model.load.active"), "the load goes on")
    quiet(server)


def test_words_of_marks_and_times_do_not_cover_the_column_of_durations(
    seen: Seen, server: RunningServer
) -> None:
    seen.open()
    load(server, rate=5, seconds=0.2, prompt_tokens=20, output_tokens=2)
    words = "[...document.querySelectorAll('#requests-time .marks i')].filter(it => it.textContent)"
    until(lambda: seen.model(f"{words}.length"), "the mark has no words")
    quiet(server)
    column = "(box => box.right - RIGHT + 2)($('requests').getBoundingClientRect())"
    right = f"Math.max(...{words}.map(it => it.getBoundingClientRect().right))"
    assert seen.model(f"{right} <= {column}")
    seen.page.evaluate("$('span').value = '10'")  # the mark moves away from the end, with its words
    for seconds in (10, 30, 60):
        seen.page.evaluate(f"$('span').value = '{seconds}'; render()")
        assert seen.model(f"{right} <= {column}"), seconds
    # A time of the clock at the very end of a zoomed time leaves room for the word above the
    # column.
    seen.page.evaluate("axis.zoom(model.at - 900, model.at)")
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
    end, took = seen.model(drawn)
    assert end < took


@pytest.mark.parametrize("timing", ["requests", "steps"])
def test_curves_and_steps_begin_with_what_the_server_has_kept(
    browser: Browser, timing: str
) -> None:
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
        it = Seen(browser.new_page(), server)
        it.open()
        ran_ms = it.model("Math.min(...[...model.bars.values()].map(bar => bar.arrival))")
        opened_ms = it.model("recorder.first")
        past = f"recorder.points.filter(point => point.at < {opened_ms})"
        assert it.model(f"{past}[0].at") <= ran_ms or ran_ms < it.model("PAST_STEP_MS")
        assert it.model("axis.whole.from") == it.model(f"{past}[0].at")
        total = (
            "points.reduce((sum, p, k) => sum + (k ? p.rates.NAME "
            "* (p.at - points[k - 1].at) / 1000 : 0), 0)"
        )
        for name, expected in (
            ("generated", metric(server, "generation_tokens_total")),
            ("ended", 3),
            ("refused", 1),
        ):
            first = it.model("recorder.points[0].figures")
            counted = (
                sum(first[each] for each in ("length", "stop")) if name == "ended" else first[name]
            )
            shown = counted + it.model(
                f"(points => {total.replace('NAME', name)})(recorder.points)"
            )
            assert shown == pytest.approx(expected, abs=0.01), name
        assert it.model(f"{past}.every(point => point.figures.cache_usage === null)"), "not kept"
        decodes = it.model("model.steps.reduce((sum, step) => sum + step[3], 0)")
        if timing == "requests":
            known = "model.figures.generated - recorder.points[0].figures.generated"
            # A frame may arrive between two readings, so both numbers are read in one.
            difference = (
                f"Math.abs(model.steps.reduce((sum, step) => sum + step[3], 0) - ({known}))"
            )
            until(lambda: it.model(f"{difference} < 0.01"), "decodes differ from tokens")
            assert decodes > 50
        else:  # a step of a prompt computes the first token of its request
            assert decodes == 3 * 39
        until(
            lambda: "no steps in this time" not in it.page.inner_text("#steps-last"),
            "no step is shown",
        )
        saved = it.model("recorder.text()")
        it.page.evaluate("text => openReport(text)", saved)
        until(lambda: it.page.inner_text("#state") == "report", "the recording does not open")
        assert it.model("recorder.points[0].at") < opened_ms and it.model("model.steps.length")
        it.is_over()


def test_knobs_faults_and_buttons_act(seen: Seen, server: RunningServer) -> None:
    seen.open()
    seen.tab("tune")
    for rate, told, now in (
        ("100", "set", 100),
        ("101", "must be between 0 and 100", 100),
        ("0", "set", 0),
    ):
        seen.page.fill("#knob-failure-injection-rate", rate)
        seen.page.keyboard.press("Tab")
        seen.shows(told)
        until(lambda now=now: settings(server)["failure-injection-rate"] == now, f"it is not {now}")  # type: ignore[misc]
    seen.forgives("400")
    seen.tab("break")
    seen.page.locator("#tab-body select").select_option("503 for every 10th request")
    seen.page.get_by_role("button", name="Apply").first.click()
    rules = [{"action": "error", "status": 503, "every": 10}]
    until(lambda: settings(server)["fault-rules"] == rules, "the rule is not set")
    seen.press("Clear")
    until(lambda: settings(server)["fault-rules"] is None, "the rule stays")
    seen.tab("operate")
    for button, state in (
        ("Pause", "paused"),
        ("Resume", "serving"),
        ("Sleep", "sleeping"),
        ("Wake up", "serving"),
    ):
        seen.page.locator("#tab-body").get_by_role("button", name=button).click()
        seen.is_now(state)
    seen.press("Reset")
    until(lambda: seen.model("[...model.blocks].every(state => state === 0)"), "blocks stay cached")


def test_a_late_answer_does_not_replace_fault_rules_that_were_chosen(seen: Seen) -> None:
    seen.open()
    held_requests: list[Route] = []
    seen.page.route("**/admin/config", lambda route: held_requests.append(route))
    with seen.page.expect_request("**/admin/config"):
        seen.tab("break")
    seen.page.locator("#tab-body select").select_option("503 for every 10th request")
    with seen.page.expect_response("**/admin/config") as response:
        held_requests[0].continue_()
    response.value.finished()
    rules = json.loads(seen.page.input_value("#tab-body textarea[aria-label^='Fault rules']"))
    assert rules == [{"action": "error", "status": 503, "every": 10}]


def test_every_tab_shows_something(seen: Seen, server: RunningServer) -> None:
    seen.open()
    complete(server, prompt=LONG, max_tokens=30)
    for name, word in (
        ("load", "requests per second"), ("break", "Random errors"), ("cache", "stored"),
        ("cache", "copies"), ("check", "client"), ("wait", "adapter slots"), ("ranks", "serving"),
        ("wait", "slots are in use"), ("tune", "set at startup"),
    ):  # fmt: skip
        seen.tab(name)
        seen.shows(word)
    seen.tab("cache")
    seen.page.get_by_label("Prompt to score").fill(LONG)  # the tab of before has texts, too
    seen.press("Score")
    until(
        lambda: re.search(
            r"127\.0\.0\.1:\d+\s+[1-9]", seen.page.inner_text("#tab-body [role=status]")
        ),
        "no score",
    )


def test_it_is_used_by_keyboard(seen: Seen, server: RunningServer) -> None:
    seen.open()
    load(server, rate=20, seconds=1, output_tokens=10)
    until(lambda: seen.model("model.bars.size > 5"), "no bars")
    seen.page.focus("#requests")
    seen.page.keyboard.press("ArrowDown")
    seen.page.keyboard.press("ArrowDown")
    assert "prompt tokens" in seen.page.inner_text("#chosen")
    seen.page.keyboard.press("Enter")
    assert seen.page.is_visible("#detail")
    seen.page.keyboard.press("Escape")
    assert seen.page.is_hidden("#detail")
    # Of a request that had ended before the page was opened, no more is known than its bar shows.
    seen.forgives("404")
    seen.page.keyboard.press("/")
    seen.page.keyboard.type("cmpl")
    assert seen.page.input_value("#filter") == "cmpl"
    seen.page.fill("#filter", "")
    seen.page.keyboard.press("Escape")
    seen.page.keyboard.press("3")
    assert seen.page.get_attribute("#tab-tune", "aria-selected") == "true"
    seen.page.keyboard.press("p")
    seen.is_now("paused")
    seen.page.keyboard.press("p")
    seen.is_now("serving")
    before = seen.page.get_attribute("html", "data-theme")
    seen.page.keyboard.press("t")
    assert seen.page.get_attribute("html", "data-theme") != before


def test_a_moment_of_before_is_shown_as_it_was_and_a_recording_is_saved_and_opened_again(
    seen: Seen, server: RunningServer, tmp_path: Path
) -> None:
    seen.open()
    load(server, rate=10, seconds=3, output_tokens=100, groups=2, shared=64)
    until(lambda: seen.model("model.figures.running > 2"), "nothing runs")
    moment = """({
        at: MODEL.at, running: MODEL.figures.running, blocks: [...MODEL.blocks].join(""),
        tokens: [...MODEL.bars.values()].map(bar => bar.tokens),
    })"""
    then = seen.model(moment.replace("MODEL", "model"))
    until(lambda: seen.model(f"model.at > {then['at']} + 3000"), "time stands still")
    seen.page.evaluate(f"stop({then['at']})")
    seen.is_now("recorded")
    assert seen.model(moment.replace("MODEL", "shown()")) == then
    assert seen.tile("Running") == f"{then['running']:.0f}"
    seen.page.click("#live")
    seen.is_now("serving")
    with seen.page.expect_download() as download:
        seen.page.click("#save")
    download.value.save_as(page := tmp_path / "recording.html")
    file, recording = (
        tmp_path / "recording.jsonl",
        page.read_text("utf-8").partition('id="recording">')[2],
    )
    file.write_text(recording.partition("</script>")[0])  # the form of older files
    assert json.loads(file.read_text().splitlines()[0])["version"] == 2
    last = seen.model("model.figures.generated")
    seen.page.set_input_files("#file", str(file))
    seen.is_now("report")
    assert 0 < seen.model("model.figures.generated") <= last
    assert seen.model("model.bars.size") > 8
    file.write_text('{"version": 99}')
    seen.page.set_input_files("#file", str(file))
    seen.shows("a different version (99;", "#state")
    for wrong in (
        "no JSON",
        '{"version": 2, "frame": {}}',
        '{"version": 2, "names": 5, "frame": {"at": 1}}',
        "<p>",
    ):
        file.write_text(wrong)
        seen.page.set_input_files("#file", str(file))
        seen.shows("not a recording of the console", "#state")
    assert seen.model("model.bars.size") > 8, "what was shown is shown on"


def test_a_simulation_is_looked_through(browser: Browser, tmp_path: Path) -> None:
    file, complaints = tmp_path / "run.html", list[str]()
    assert run(["--rate", "8", "--seconds", "30", "--pods", "2", "--html", str(file)]) == 0
    page = browser.new_page()
    page.on("console", lambda it: complaints.append(it.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(file.as_uri())
    until(lambda: page.inner_text("#state") == "report", "it shows nothing")
    assert page.evaluate("model.over.length") == page.evaluate("model.bars.size") > 150
    page.evaluate("stop(10000)")
    until(lambda: page.evaluate("shown().figures.running") > 5, "nothing runs in the midst of it")
    assert [tab.inner_text() for tab in page.locator("#tabs button").all()] == [
        "Queue",
        "Cache events",
    ]
    assert "slots are in use" in page.inner_text("#tab-body")
    assert page.inner_text("#steps-title") == "Pods" and page.evaluate("shown().pods.length") == 2
    page.close()
    assert complaints == []


def test_a_simulation_opens_at_its_busiest_moment_with_means_and_peaks(
    browser: Browser, tmp_path: Path
) -> None:
    file = tmp_path / "run.html"
    assert run(["--rate", "8", "--seconds", "30", "--html", str(file)]) == 0
    page = browser.new_page()
    page.goto(file.as_uri())
    until(lambda: page.inner_text("#state") == "report", "it shows nothing")
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
    means = {name: float(each[0].replace(",", "")) for name, each in sums.items() if each}
    peaks = {name: float(each[1].replace(",", "")) for name, each in sums.items() if each}
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
    until(lambda: page.evaluate("shown().figures.running") == 0, "the end is not shown")
    page.close()


@pytest.mark.parametrize("width", [390, 1280, 1920])
@pytest.mark.parametrize("theme", ["dark", "light"])
def test_it_fits_its_window_and_axe_finds_nothing(
    browser: Browser, server: RunningServer, theme: Any, width: int
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=theme)
    it = Seen(page, server)
    it.open()
    assert page.get_attribute("html", "data-theme") == theme
    assert it.model("document.documentElement.scrollWidth") <= width
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    it.show(complete(server, prompt=LONG, max_tokens=30)["id"])
    for tab in ("", "load", "break", "tune", "operate", "wait", "cache", "check", "ranks"):
        if tab:
            it.model("views.detail.hide()")
            it.tab(tab)
            until(lambda: it.page.inner_text("#tab-body"), "the tab stays empty")
        found = axe.run(page).response["violations"]
        assert not found, [(one["id"], [node["html"] for node in one["nodes"]]) for one in found]
    it.is_over()


def test_thousands_of_requests_pass_without_growth(browser: Browser) -> None:
    """What the page keeps of bars and elements, and the server of requests, stays within its
    limits.
    """
    with running_server(
        "--console", "--admin-key=secret", "--max-num-seqs=64", "--inter-token-latency=1ms"
    ) as server:
        it = Seen(browser.new_page(), server)
        it.open()
        sizes, over = [], "model.load !== null && !model.load.active && model.load.sent > 0"
        while len(sizes) < 3 or metric(server, "request_success_total") < 4000:
            load(server, rate=500, seconds=4.2, prompt_tokens=20, output_tokens=2)
            until(lambda: it.model(over), "never over", 50)
            it.page.evaluate("model.load = null")
            sizes.append(it.model("[model.bars.size, document.querySelectorAll('*').length]"))
        bars, elements = zip(*sizes, strict=True)
        assert max(bars) <= 2500 + 64 + 1000
        assert max(elements) - min(elements) < 60
        memory = requests.get(f"{server.url}/admin/memory", headers=KEY, timeout=20).json()[
            "caches"
        ]
        kept = memory["console requests"]
        assert kept["size_bytes"] <= kept["limit_bytes"]
        it.is_over()
