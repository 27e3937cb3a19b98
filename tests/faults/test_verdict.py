"""What a server can tell of how a client behaves, in virtual time."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.serving.faults.audit import (
    MOST_FAILED,
    MOST_NAMES,
    MOST_PATHS,
    RETRY_WINDOW_S,
    AuditTrail,
    ClientAudit,
    Exchange,
    FindingReport,
    timestamp,
)

PATH = "/v1/chat/completions"


class Client:
    """A client at a moment; each answer takes 10 ms."""

    def __init__(self) -> None:
        self.at_s = 5000.0
        self.audit = ClientAudit("me", lambda: 1_700_000_000.0 + self.at_s)
        self.sent = 0

    def ask(
        self,
        body: int = 1,
        status: int = 200,
        retry_after_s: float | None = None,
        path: str = PATH,
        cut_off: bool = False,
    ) -> Client:
        self.sent += 1
        arrived_s, self.at_s = self.at_s, self.at_s + 0.01
        exchange = Exchange(path, body, f"r{self.sent}", arrived_s, self.at_s, status, retry_after_s, "f")
        self.audit.begin(exchange)
        self.audit.end(exchange, self.at_s, status >= 400 or cut_off, cut_off)
        return self

    def wait(self, seconds: float) -> Client:
        self.at_s += seconds
        return self

    def found(self) -> dict[str, FindingReport]:
        return {finding["kind"]: finding for finding in self.audit.report()["findings"]}

    def awaited(self) -> int:
        return self.audit.report()["awaiting_retry"]


def retries(waits_s: list[float], status: int = 503) -> Client:
    """A client whose one request fails again and again, with these waits behind it."""
    client = Client()
    for wait_s in waits_s:
        client.ask(status=status).wait(wait_s)
    return client


def each(bodies: int, status: int = 500, retry_after_s: float | None = None, wait_s: float = 0.0) -> Client:
    """A client that sends so many different requests."""
    client = Client()
    for body in range(bodies):
        client.ask(body, status, retry_after_s).wait(wait_s)
    return client


def told(status: int = 429) -> Client:
    """A client that was told to wait for two seconds."""
    return Client().ask(1, status, 2.0)


IGNORED, HASTY = {"retry_after_ignored"}, {"no_backoff"}
CONDUCT = {
    "it waits as long as it is told": (told().wait(2.0).ask(), set()),
    "timers may be a little early": (told().wait(1.98).ask(), set()),
    "another endpoint": (told().wait(0.5).ask(2, path="/v1/completions"), set()),
    "another body": (told().wait(0.5).ask(2), IGNORED),
    "another request that was on its way": (told().wait(0.01).ask(2), set()),
    "the same one cannot have been": (told().wait(0.01).ask(1), IGNORED),
    "ever new requests": (each(5, 429, 2.0, 0.04), IGNORED),
    "back-off from 0.1 s": (retries([0.1 * 2**n for n in range(8)]), set()),
    "back-off from 1 s": (retries([2.0**n for n in range(8)]), set()),
    "three hasty retries": (retries([0.02] * 4), HASTY),
    "equal short waits": (retries([0.3] * 6, 500), HASTY | {"retry_storm"}),
    "equal long waits": (retries([1.0] * 6, 500), set()),
    "many different requests": (each(50), set()),
    "the same after a success": (Client().ask(status=500).ask().ask().ask().ask().ask().ask(), set()),
}


@pytest.mark.parametrize("what", CONDUCT)
def test_conduct_is_judged(what: str) -> None:
    client, findings = CONDUCT[what]
    assert client.found().keys() == findings


def test_who_comes_back_too_early_has_ignored_retry_after() -> None:
    client = Client().ask(status=429, retry_after_s=2.0).wait(0.5).ask(status=429, retry_after_s=2.0)
    found = client.found()["retry_after_ignored"]
    assert found["count"] == 1 and found["example_request_id"] == "r2"
    assert found["first"] == found["last"] == timestamp(1_700_000_000.0 + client.at_s)
    assert "1.50 s before" in found["what"] and PATH in found["what"]


def test_five_retries_within_two_seconds_are_a_storm() -> None:
    client = Client()
    for _ in range(6):
        client.ask(status=500).wait(0.1)
    found = client.found()
    assert found["retry_storm"]["count"] == 1 and found["retry_storm"]["example_request_id"] == "r6"
    for _ in range(5):
        client.ask(status=500).wait(0.1)
    assert client.found()["retry_storm"]["count"] == 2


def test_identical_requests_that_were_all_on_their_way_are_no_retries() -> None:
    audit = ClientAudit("me", lambda: 0.0)
    exchanges = [Exchange(PATH, 1, str(k), 10.0, 11.0, 429, 5.0) for k in range(20)]
    for exchange in exchanges:
        audit.begin(exchange)
        audit.end(exchange, exchange.answered_s, failed=True)
    assert audit.report()["findings"] == []


def test_a_cut_stream_that_is_asked_for_again_is_clean() -> None:
    client = Client().ask(cut_off=True).wait(3.0)
    assert client.awaited() == 1
    client.ask()
    client.audit.settle(client.at_s + 10 * RETRY_WINDOW_S)
    assert client.awaited() == 0 and client.found() == {}


def test_a_cut_stream_that_is_not_asked_for_again_in_time_is_found() -> None:
    client = Client().ask(cut_off=True)
    client.audit.settle(client.at_s + RETRY_WINDOW_S - 0.1)
    assert client.found() == {} and client.awaited() == 1
    client.audit.settle(client.at_s + RETRY_WINDOW_S)
    client.audit.settle(client.at_s + RETRY_WINDOW_S)
    found = client.found()["truncated_stream_not_retried"]
    assert found["count"] == 1 and found["example_request_id"] == "r1"
    assert "cannot be seen from here" in found["what"] and client.awaited() == 0


def test_a_request_whose_body_nobody_read_is_only_counted() -> None:
    audit = ClientAudit("me", lambda: 0.0)
    for moment_s in (10.0, 20.0, 30.0):
        audit.begin(Exchange(PATH, None, "r", moment_s, moment_s, 429, 1.0))
    assert audit.requests == 3 and audit.errors == {429: 3} and audit.report()["findings"] == []


def test_a_client_is_known_from_its_first_error_or_fault_on() -> None:
    trail = AuditTrail(lambda: 0.0)
    fine = Exchange(PATH, 1, "r", 0.0, 0.0, 200)
    assert trail.begin("a", fine) is None and trail.report(0.0)["clients"] == {}
    assert trail.begin("a", Exchange(PATH, 1, "r", 0.0, 0.0, 200, fault="stall"))
    assert trail.begin("a", fine) and trail.begin("b", fine) is None
    report = trail.report(0.0)
    assert report["clean"] is True and list(report["clients"]) == ["a"]
    assert report["clients"]["a"] == {
        "requests": 2,
        "errors": {},
        "faults": {"stall": 1},
        "disconnects": 0,
        "awaiting_retry": 0,
        "findings": [],
    }


def test_a_report_may_be_the_last_one() -> None:
    trail = AuditTrail(lambda: 0.0)
    exchange = Exchange(PATH, 1, "r", 0.0, 0.0, 200, fault="truncate")
    audit = trail.begin("a", exchange)
    assert audit
    trail.end(audit, exchange, 1.0, failed=True, truncated=True)
    assert trail.report(2.0)["clean"] is True
    assert trail.report(2.0, over=True)["clean"] is False
    trail.restart()
    assert trail.report(3.0)["clients"] == {}


@given(st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 200)), max_size=300))
def test_what_is_remembered_of_a_client_is_bounded_whatever_it_does(asks: list[tuple[int, int]]) -> None:
    trail = AuditTrail(lambda: 0.0)
    for number, (client, body) in enumerate(asks):
        exchange = Exchange(PATH, body, "r", number, number, 500, 1.0, f"f{body}")
        audit = trail.begin(f"c{client}", exchange)
        assert audit
        trail.end(audit, exchange, number, failed=True)
        assert len(audit._failed) <= MOST_FAILED and len(audit.faults) <= MOST_NAMES + 1
    assert trail.size_bytes <= trail.limit_bytes


def worst(client: str, clock: list[float]) -> ClientAudit:
    """An audit that has seen all that there is: every finding, and all texts as long as they may be."""
    audit = ClientAudit(client, lambda: clock[0])
    for number in range(MOST_FAILED):
        path, request_id = f"/v1/{number % MOST_PATHS}", f"{number}".ljust(128, "é")
        for k in range(12):
            clock[0] += 0.1 if number else 40
            name = f"{min(number, MOST_NAMES)}".ljust(64, "€")
            status = 400 + (12 * number + k) % 200
            exchange = Exchange(path, 2**60 + number, request_id, clock[0], clock[0], status, 0.2, name)
            audit.begin(exchange)
            audit.end(exchange, clock[0], failed=True, truncated=not number)
    return audit


def test_the_size_of_an_audit_is_no_less_than_what_it_really_takes() -> None:
    for make in (worst, lambda client, clock: ClientAudit(client, lambda: 0.0)):
        clock = [1e9]
        gc.collect()
        tracemalloc.start()
        audits = [make(f"address:10.0.0.{number}", clock) for number in range(10)]
        really, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert really <= sum(audit.size_bytes for audit in audits) <= 3 * really
    assert len(worst("me", [1e9]).report()["findings"]) == 4


def test_an_audit_that_grows_after_its_beginning_pushes_others_out() -> None:
    trail = AuditTrail(lambda: 0.0)
    exchange = Exchange(PATH, 1, "r", 0.0, 0.0, 500)
    audits = [trail.begin(f"c{number}", exchange) for number in range(1000)]
    known = len(trail.report(0.0)["clients"])
    for audit in audits:
        assert audit
        trail.end(audit, exchange, 0.0, failed=True)
    assert len(trail.report(0.0)["clients"]) <= known and trail.size_bytes <= trail.limit_bytes
