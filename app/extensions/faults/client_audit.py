"""Audit of how clients handle failures, as far as a server can see (GET /admin/verdict)."""

from collections.abc import Callable
from datetime import UTC, datetime

from cachetools import LRUCache
from msgspec import Struct

from app.core.server.http.context import RequestContext
from app.core.server.http.fault import Fault
from app.core.server.http.numbers import header_number
from app.core.server.http.response import CLIENT_GONE, Response, StreamingBody
from app.extensions.faults.fault_rules import MissingDoneRule
from app.extensions.faults.limits import (
    CLIENT_BYTES,
    FAILED_BODY_BYTES,
    MAX_CLIENTS,
    MAX_FAILED_BODIES,
)
from app.shared.client_names import client_name

MAX_FAULT_NAMES = 32
"""Most fault names counted separately for a client; further names are counted as `OTHERS`."""
OTHERS = "others"
MAX_REQUEST_ID_CHARACTERS = 128
EARLY_S = 0.05
"""Tolerance of an early retry: timers are coarse."""
DELIVERY_S = 0.1
"""Longest delivery of a Retry-After to a client."""
BACK_OFF_RETRIES = 3
"""Retries within `BACK_OFF_S` that are misconduct, unless the last wait is long enough.

It is long enough if it exceeds `NO_WAIT_S` and `BACK_OFF_GROWTH` times the wait before it.
"""
BACK_OFF_S = 1.0
BACK_OFF_GROWTH = 1.5
NO_WAIT_S = 0.05
STORM_RETRIES = 5
"""Retries of one body within `STORM_S` that are a retry storm."""
STORM_S = 2.0
RETRY_WINDOW_S = 30.0
"""Longest time until a client should retry a stream that was cut off."""


class AuditedExchange(Struct, frozen=True):
    """A request of a client, and the start of its answer. Times are monotonic seconds."""

    client: str
    path: str
    body: int | None
    """Hash of the body; None when the body was not read."""
    request_id: str
    arrived_s: float
    answered_s: float
    status: int
    retry_after_s: float | None = None
    fault: str = ""
    """Name of the injected fault."""

    @property
    def key(self) -> tuple[str, str, int | None]:
        """Identifies all exchanges with the same body."""
        return self.client, self.path, self.body


class Finding(Struct):
    """One kind of misconduct.

    `first` and `last` are ISO 8601 in UTC; the id is the last request's.
    """

    kind: str
    count: int = 0
    first: str = ""
    last: str = ""
    example_request_id: str = ""
    what: str = ""


class ClientReport(Struct):
    """The audit of one client; `awaiting_retry` counts cut-off streams that it may still retry."""

    requests: int = 0
    errors: dict[int, int] = {}
    faults: dict[str, int] = {}
    disconnects: int = 0
    awaiting_retry: int = 0
    findings: list[Finding] = []


class AuditReport(Struct):
    """The body of GET /admin/verdict. `since` is ISO 8601 in UTC; `clients` are keyed by name."""

    since: str
    clean: bool
    clients: dict[str, ClientReport]


class FailedBody(Struct):
    """A body that failed when last sent. `waits` and `retries` describe its latest retries."""

    failed_s: float = 0.0
    request_id: str = ""
    truncated: bool = False
    waits: tuple[float, ...] = ()
    retries: tuple[float, ...] = ()


class ClientAudit:
    """Audits how clients handle failures: each client from its first error or fault on.

    `now` returns monotonic seconds, `unix` Unix seconds; `since_s` is the Unix time of the audit's
    start, for the report.
    """

    def __init__(
        self, now: Callable[[], float], unix: Callable[[], float], *, since_s: float
    ) -> None:
        self._now = now
        self._unix = unix
        self._since = _timestamp(since_s)
        self._clients: LRUCache[str, ClientReport] = LRUCache(MAX_CLIENTS)
        self._failed: LRUCache[tuple[str, str, int | None], FailedBody] = LRUCache(
            MAX_FAILED_BODIES
        )
        """Failed bodies by client, route and hash."""
        self._not_before: LRUCache[tuple[str, str], tuple[float, float]] = LRUCache(
            MAX_FAILED_BODIES
        )
        """Time of the first Retry-After, and the end of the last one, by client and route."""

    @property
    def size_bytes(self) -> int:
        """Estimated memory of the audit."""
        return CLIENT_BYTES * len(self._clients) + FAILED_BODY_BYTES * len(self._failed)

    def note_response(self, context: RequestContext, path: str, response: Response) -> None:
        """Records an answer of the route with this `path` at its start, and later its end."""
        fault = context.fault or Fault()
        is_gone = response.status == CLIENT_GONE
        exchange = AuditedExchange(
            client=client_name(context),
            path=path,
            body=None if context.body is None else hash(context.body),
            request_id=(context.request_id or "-")[:MAX_REQUEST_ID_CHARACTERS],
            arrived_s=context.arrival_s,
            answered_s=self._now(),
            status=200 if is_gone else response.status,
            retry_after_s=header_number(response.headers.get("Retry-After", "")),
            fault=fault.name,
        )
        report = self.note_answer(exchange)
        if report is None:
            return
        if isinstance(response.body, StreamingBody):
            self._note_end_of_stream(response, response.body, exchange, report)
        elif is_gone:
            report.disconnects += 1
        else:
            damaged = fault.damage is not None and not isinstance(fault.damage, MissingDoneRule)
            self.note_end(exchange, exchange.answered_s, exchange.status >= 400 or damaged)

    def _note_end_of_stream(
        self,
        response: Response,
        stream: StreamingBody,
        exchange: AuditedExchange,
        report: ClientReport,
    ) -> None:
        def note() -> None:
            report.disconnects += stream.gone
            if not stream.gone:
                self.note_end(exchange, self._now(), stream.was_damaged, stream.is_cut_off)

        response.on_close(note)

    def note_answer(self, exchange: AuditedExchange) -> ClientReport | None:
        """Records a request at the start of its answer.

        Returns None for a client without a failure.
        """
        report = self._clients.get(exchange.client)
        if report is None:
            if exchange.status < 400 and not exchange.fault:
                return None
            report = ClientReport()
            self._clients[exchange.client] = report
        report.requests += 1
        failed = self._failed.get(exchange.key)
        if failed is not None and exchange.arrived_s < failed.failed_s:
            failed = None  # this request was sent before the client saw the failure
        self._check_patience(report, exchange, is_retry=failed is not None)
        if failed is not None:
            self._check_retry(report, exchange, failed)
        if exchange.status >= 400:
            report.errors[exchange.status] = report.errors.get(exchange.status, 0) + 1
        if exchange.fault:
            name = exchange.fault
            if name not in report.faults and len(report.faults) >= MAX_FAULT_NAMES:
                name = OTHERS
            report.faults[name] = report.faults.get(name, 0) + 1
        return report

    def note_end(
        self, exchange: AuditedExchange, ended_s: float, failed: bool, truncated: bool = False
    ) -> None:
        """Records the end of an answer, at `ended_s` monotonic seconds."""
        if not failed:
            self._failed.pop(exchange.key, None)
        elif exchange.body is not None:
            body = self._failed.get(exchange.key) or FailedBody()
            body.failed_s = ended_s
            body.request_id = exchange.request_id
            body.truncated = truncated
            self._failed[exchange.key] = body

    def report(self, over: bool = False) -> AuditReport:
        """Reports all clients. `over` closes the retry window of every stream."""
        now_s = self._now()
        for report in self._clients.values():
            report.awaiting_retry = 0
        for (client, path, _), failed in list(self._failed.items()):
            client_report = self._clients.get(client)
            if client_report is not None and failed.truncated:
                if over or now_s - failed.failed_s >= RETRY_WINDOW_S:
                    self._add_not_retried(client_report, path, failed)
                client_report.awaiting_retry += failed.truncated
        clean = not any(report.findings for report in self._clients.values())
        return AuditReport(self._since, clean, dict(self._clients))

    def _check_patience(
        self, report: ClientReport, exchange: AuditedExchange, is_retry: bool
    ) -> None:
        """Checks that a client waits for Retry-After."""
        key = (exchange.client, exchange.path)
        first_s, over_s = self._not_before.get(key, (0.0, 0.0))
        early_s = over_s - exchange.arrived_s
        since_s = exchange.arrived_s - first_s
        if early_s > EARLY_S and since_s >= 0 and (is_retry or since_s > DELIVERY_S):
            self._add_finding(
                report,
                "retry_after_ignored",
                exchange.request_id,
                f"The client requested {exchange.path} {early_s:.2f} s before the Retry-After of "
                "an earlier answer had passed.",
            )
        if exchange.retry_after_s is not None:
            now_s = exchange.answered_s
            if over_s <= now_s:
                first_s = now_s
            self._not_before[key] = (first_s, now_s + exchange.retry_after_s)

    def _check_retry(
        self, report: ClientReport, exchange: AuditedExchange, failed: FailedBody
    ) -> None:
        """Checks that a client waits longer before each retry, and retries rarely."""
        wait_s = exchange.arrived_s - failed.failed_s
        if failed.truncated and wait_s >= RETRY_WINDOW_S:
            self._add_not_retried(report, exchange.path, failed)
        failed.truncated = False
        failed.waits = (*failed.waits, wait_s)[-BACK_OFF_RETRIES:]
        failed.retries = (*failed.retries, exchange.arrived_s)[-STORM_RETRIES:]
        total_wait_s = sum(failed.waits)
        is_hasty = len(failed.waits) == BACK_OFF_RETRIES and total_wait_s < BACK_OFF_S
        if is_hasty and wait_s <= max(NO_WAIT_S, BACK_OFF_GROWTH * failed.waits[-2]):
            failed.waits = ()
            self._add_finding(
                report,
                "no_backoff",
                exchange.request_id,
                f"The client retried a failed body at {exchange.path} {BACK_OFF_RETRIES} times "
                f"within {total_wait_s:.2f} s, without waiting longer each time.",
            )
        span_s = failed.retries[-1] - failed.retries[0]
        if len(failed.retries) == STORM_RETRIES and span_s < STORM_S:
            failed.retries = ()
            self._add_finding(
                report,
                "retry_storm",
                exchange.request_id,
                f"The client retried one body at {exchange.path} {STORM_RETRIES} times within "
                f"{span_s:.2f} s.",
            )

    def _add_not_retried(self, report: ClientReport, path: str, failed: FailedBody) -> None:
        failed.truncated = False
        self._add_finding(
            report,
            "truncated_stream_not_retried",
            failed.request_id,
            f"A stream of {path} was cut off and not requested again in time; "
            "whether the client noticed cannot be seen from here.",
        )

    def _add_finding(
        self, report: ClientReport, kind: str, request_id: str, description: str
    ) -> None:
        now = _timestamp(self._unix())
        for finding in report.findings:
            if finding.kind == kind:
                break
        else:
            finding = Finding(kind, first=now)
            report.findings.append(finding)
        finding.count += 1
        finding.last = now
        finding.example_request_id = request_id
        finding.what = description


def _timestamp(unix_s: float) -> str:
    time = datetime.fromtimestamp(unix_s, UTC)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
