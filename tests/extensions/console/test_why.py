"""Why a request was late: what the page and its route are told of the explanation."""

import msgspec

from app.extensions.console.observer import RequestReport
from app.extensions.explanation.delays import DelayLog
from tests.application import app_of
from tests.extensions.console.watched import WatchedEngine


def report_of(watched: WatchedEngine, request_id: str) -> RequestReport:
    """The report of a request, which survives the way to a page."""
    report = watched.observer.explain(request_id)
    assert report is not None
    as_json = msgspec.json.encode(report)
    assert msgspec.convert(msgspec.json.decode(as_json), RequestReport) == report
    return report


def test_report_explains_waiting_running_and_completed_choices() -> None:
    watched = WatchedEngine(slots=1, time_to_first_token=1.0, inter_token_latency=0.1)
    watched.ask("first", max_tokens=4)
    watched.ask("late", max_tokens=4)
    watched.frame(0.5)
    statuses = [report_of(watched, name).choices[0].status for name in ("first", "late")]
    assert statuses == ["running", "waiting"]
    assert report_of(watched, "late").sentence.startswith("Waited 500 ms for a slot: 1 of 1 taken")
    watched.frame(100)
    (choice,) = report_of(watched, "late").choices
    assert choice.status == "length"
    assert report_of(watched, "late").sentence == choice.sentence
    assert watched.observer.explain("never") is None


def test_explanation_report_shows_the_sentence_for_the_slowest_choice() -> None:
    watched = WatchedEngine(slots=1, time_to_first_token=1.0, inter_token_latency=0.1)
    watched.ask("both", choices=2, max_tokens=4)
    watched.frame(100)
    report = report_of(watched, "both")
    assert [choice.choice for choice in report.choices] == [0, 1]
    assert report.sentence == report.choices[1].sentence
    assert report.choices[0].total_ms < report.choices[1].total_ms


def test_memory_report_includes_the_delay_log_only_with_the_console() -> None:
    sizes = {}
    for flag in ("--console", "--no-console"):
        client = app_of(flag, "--force-dummy-tokenizer").test_client()
        sizes[flag] = client.get("/admin/memory").get_json()["caches"]
    assert sizes["--console"]["delay log"] == {"size_bytes": 0, "limit_bytes": DelayLog.limit_bytes}
    assert "delay log" not in sizes["--no-console"]


def test_explanation_report_contains_the_times_of_each_request_phase() -> None:
    watched = WatchedEngine(slots=1, time_to_first_token=1.0, inter_token_latency=0.1)
    watched.ask("first", max_tokens=4)
    watched.ask("late", max_tokens=4)
    watched.frame(0.5)
    running = report_of(watched, "late")
    assert running.arrived_s is not None
    assert (running.queued_s, running.first_s, running.preemptions) == (None, None, None)
    watched.frame(100)
    report = report_of(watched, "late")
    assert report.arrived_s is not None and report.last_s is not None
    assert report.queued_s == report.arrived_s
    delays_s = []
    for moment_s in (report.scheduled_s, report.first_s, report.last_s):
        assert moment_s is not None
        delays_s.append(round(moment_s - report.arrived_s, 3))
    assert delays_s == [1.3, 2.3, 2.6]
    assert (report.cached_tokens, report.preemptions) == (0, 0)
