"""What a server can tell of how a client behaves, in virtual time."""

from errno import EMFILE
from random import Random
from typing import Self

import pytest

from app.core.server.http.context import MatchedRoute
from app.core.server.http.response import json_response
from app.extensions.faults.audit import FaultAudit
from app.extensions.faults.client_audit import (
    MAX_FAULT_NAMES,
    OTHERS,
    RETRY_WINDOW_S,
    AuditedExchange,
    ClientAudit,
    ClientReport,
    Finding,
)
from app.extensions.faults.injector import FaultInjector
from app.extensions.faults.limits import MAX_CLIENTS, MAX_FAILED_BODIES
from tests.application import request

PATH = "/v1/chat/completions"


class Client:
    """A client at a moment; each answer takes 10 ms."""

    def __init__(self) -> None:
        self.at_s = 5000.0
        self.later_s = 0.0
        now = lambda: self.at_s + self.later_s  # noqa: E731
        self.audit = ClientAudit(now, now, since_s=0.0)
        self.sent = 0

    def ask(
        self,
        body: int = 1,
        status: int = 200,
        retry_after_s: float | None = None,
        path: str = PATH,
        cut_off: bool = False,
    ) -> Self:
        self.sent += 1
        arrived_s = self.at_s
        self.at_s = self.at_s + 0.01
        exchange = AuditedExchange(
            "me",
            path,
            body=body,
            request_id=f"r{self.sent}",
            arrived_s=arrived_s,
            answered_s=self.at_s,
            status=status,
            retry_after_s=retry_after_s,
            fault="f",
        )
        assert self.audit.note_answer(exchange)
        self.audit.note_end(exchange, self.at_s, status >= 400 or cut_off, cut_off)
        return self

    def wait(self, seconds: float) -> Self:
        self.at_s += seconds
        return self

    def report(self, later_s: float = 0.0) -> ClientReport:
        self.later_s = later_s
        return self.audit.report().clients["me"]

    def findings_by_kind(self, later_s: float = 0.0) -> dict[str, Finding]:
        return {finding.kind: finding for finding in self.report(later_s).findings}


def retries(waits_s: list[float], status: int = 503) -> Client:
    """A client whose one request fails again and again, with these waits behind it."""
    client = Client()
    for wait_s in waits_s:
        client.ask(status=status).wait(wait_s)
    return client


def client_of_bodies(
    bodies: int, status: int = 500, retry_after_s: float | None = None, wait_s: float = 0.0
) -> Client:
    client = Client()
    for body in range(bodies):
        client.ask(body, status, retry_after_s).wait(wait_s)
    return client


def rate_limited_client(status: int = 429) -> Client:
    """A client that was told to wait for two seconds."""
    return Client().ask(1, status, 2.0)


IGNORED = {"retry_after_ignored"}
HASTY = {"no_backoff"}
CONDUCT = {
    "it waits as long as it is told": (rate_limited_client().wait(2.0).ask(), set()),
    "another endpoint": (rate_limited_client().wait(0.5).ask(2, path="/v1/completions"), set()),
    "another request that was on its way": (rate_limited_client().wait(0.01).ask(2), set()),
    "the same one cannot have been": (rate_limited_client().wait(0.01).ask(1), IGNORED),
    "ever new requests": (client_of_bodies(5, 429, 2.0, 0.04), IGNORED),
    "back-off from 0.1 s": (retries([0.1 * 2**n for n in range(8)]), set()),
    "three hasty retries": (retries([0.02] * 4), HASTY),
    "equal short waits": (retries([0.3] * 6, 500), HASTY | {"retry_storm"}),
    "many different requests": (client_of_bodies(50), set()),
    "a cut stream that is asked for again": (Client().ask(cut_off=True).wait(3.0).ask(), set()),
    "the same after a success": (
        Client().ask(status=500).ask().ask().ask().ask().ask().ask(),
        set(),
    ),
}


@pytest.mark.parametrize("case", CONDUCT)
def test_client_audit_reports_ignored_retry_times_and_hasty_retries(
    case: str,
) -> None:
    client, findings = CONDUCT[case]
    assert client.findings_by_kind(10 * RETRY_WINDOW_S).keys() == findings


def test_concurrent_identical_requests_are_not_counted_as_retries() -> None:
    audit = Client().audit
    for number in range(20):
        exchange = AuditedExchange(
            "me",
            PATH,
            body=1,
            request_id=str(number),
            arrived_s=10.0,
            answered_s=11.0,
            status=429,
            retry_after_s=5.0,
        )
        assert audit.note_answer(exchange)
        audit.note_end(exchange, exchange.answered_s, failed=True)
    assert audit.report().clean is True


def test_truncated_stream_that_is_not_retried_in_time_is_reported() -> None:
    client = Client().ask(cut_off=True)
    assert (
        client.findings_by_kind(RETRY_WINDOW_S - 0.1) == {} and client.report().awaiting_retry == 1
    )
    for _ in range(2):
        finding = client.findings_by_kind(RETRY_WINDOW_S)["truncated_stream_not_retried"]
    assert finding.count == 1 and finding.example_request_id == "r1"
    assert "cannot be seen from here" in finding.what and client.report().awaiting_retry == 0


def test_memory_of_the_client_audit_is_bounded() -> None:
    audit = Client().audit
    for number in range(2 * MAX_FAILED_BODIES):
        client = "one" if number % 2 else f"c{number}"
        exchange = AuditedExchange(
            client,
            PATH,
            body=number,
            request_id="r",
            arrived_s=number,
            answered_s=number,
            status=500,
            retry_after_s=1.0,
            fault=f"f{number % 100}",
        )
        assert audit.note_answer(exchange)
        audit.note_end(exchange, number, failed=True)
    clients = audit.report().clients
    assert len(clients) == MAX_CLIENTS and audit.size_bytes == FaultAudit.limit_bytes
    assert clients["one"].requests == MAX_FAILED_BODIES
    assert (
        len(clients["one"].faults) == MAX_FAULT_NAMES + 1 and clients["one"].faults[OTHERS] > 1000
    )


def test_audit_begins_later_if_too_many_files_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> ClientAudit:
        raise OSError(EMFILE, "Too many open files")

    injector = FaultInjector(Random(1), lambda: 5000.0)
    audit = FaultAudit(injector, lambda: 5000.0)
    asked = request(PATH, "POST", is_generation=True)
    asked.route = MatchedRoute(PATH)
    with monkeypatch.context() as few_files:
        few_files.setattr(audit, "_new_audit", fail)
        audit.end(asked, json_response(b"", 500))
        assert audit.size_bytes == 0
    audit.end(asked, json_response(b"", 500))
    (client,) = audit.report().clients.values()
    assert client.requests == 1
