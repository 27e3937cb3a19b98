"""Why a request was late: what the page and its route are told of the explanation."""

import msgspec

from app.extensions.console.observer import RequestReport
from app.extensions.explanation.delays import DelayLog
from tests.application import app_of
from tests.extensions.console.watched import Watched


def report_of(it: Watched, request_id: str) -> RequestReport:
    """The report of a request, which survives the way to a page."""
    report = it.observer.explain(request_id)
    assert report is not None
    as_json = msgspec.json.encode(report)
    assert msgspec.convert(msgspec.json.decode(as_json), RequestReport) == report
    return report


def test_a_report_explains_choices_that_wait_run_and_have_ended() -> None:
    it = Watched(slots=1, time_to_first_token=1.0, inter_token_latency=0.1)
    it.ask("first", max_tokens=4)
    it.ask("late", max_tokens=4)
    it.frame(0.5)
    statuses = [report_of(it, name).choices[0].status for name in ("first", "late")]
    assert statuses == ["running", "waiting"]
    assert report_of(it, "late").sentence.startswith("Waited 500 ms for a slot: 1 of 1 taken")
    it.frame(100)
    (choice,) = report_of(it, "late").choices
    assert choice.status == "length"
    assert report_of(it, "late").sentence == choice.sentence
    assert it.observer.explain("never") is None


def test_the_sentence_of_a_report_is_that_of_the_slowest_choice() -> None:
    it = Watched(slots=1, time_to_first_token=1.0, inter_token_latency=0.1)
    it.ask("both", choices=2, max_tokens=4)
    it.frame(100)
    report = report_of(it, "both")
    assert [choice.choice for choice in report.choices] == [0, 1]
    assert report.sentence == report.choices[1].sentence
    assert report.choices[0].total_ms < report.choices[1].total_ms


def test_the_log_of_delays_counts_as_a_cache_of_a_server_with_a_console() -> None:
    sizes = {}
    for flag in ("--console", "--no-console"):
        client = app_of(flag, "--force-dummy-tokenizer").test_client()
        sizes[flag] = client.get("/admin/memory").get_json()["caches"]
    assert sizes["--console"]["delay log"] == {"size_bytes": 0, "limit_bytes": DelayLog.limit_bytes}
    assert "delay log" not in sizes["--no-console"]


def test_report_has_the_moments_of_the_journal_in_unix_seconds() -> None:
    it = Watched(slots=1, time_to_first_token=1.0, inter_token_latency=0.1)
    it.ask("first", max_tokens=4)
    it.ask("late", max_tokens=4)
    it.frame(0.5)
    running = report_of(it, "late")
    assert running.arrived_s is not None
    assert (running.queued_s, running.first_s, running.preemptions) == (None, None, None)
    it.frame(100)
    report = report_of(it, "late")
    assert report.arrived_s is not None and report.last_s is not None
    assert report.queued_s == report.arrived_s
    delays_s = []
    for moment_s in (report.scheduled_s, report.first_s, report.last_s):
        assert moment_s is not None
        delays_s.append(round(moment_s - report.arrived_s, 3))
    assert delays_s == [1.3, 2.3, 2.6]
    assert (report.cached_tokens, report.preemptions) == (0, 0)
