"""Replays a recording: sends the recorded bytes at the recorded times. Start with `Replay`."""

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from weakref import WeakValueDictionary

from gevent.event import Event

from app.core.api.fault import FaultInjection
from app.core.api.reply_rules import NeedsRule, ReplyRules
from app.core.base.clock.pause import Slices, call_long
from app.core.base.clock.timer_wheel import TimerWheel
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.client_connection import ClientConnection
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import bad_request, internal, not_found
from app.core.server.http.response import (
    CLIENT_GONE,
    Response,
    StreamingBody,
    json_response,
)
from app.core.server.middleware.masking import MASK
from app.core.server.middleware.stack import Middleware
from app.extensions.journal.journal import Journal
from app.extensions.recording.exchange import (
    MAX_BODY_BYTES,
    Headers,
    RecordedAnswer,
    RecordingError,
    bytes_of,
    masked_pieces,
    sendable,
)
from app.extensions.recording.forwarding import check_path, target_without_root_path
from app.extensions.recording.library import MAX_CLIENTS, Recording, client_of
from app.extensions.recording.recorded_reply import reply_of
from app.extensions.recording.recorder import RelayedExchange, Upstream
from app.extensions.recording.request_form import RequestForm, request_form
from app.shared.break_off import break_off
from app.shared.http_client import KEYS
from app.shared.relay import HOP_BY_HOP, NOT_FORWARDED
from config.untrusted import INVALID

log = logging.getLogger(__name__)
MISS = "X-Replay-Miss"
"""Header with another `replay-miss` for its request."""
COUNTED_PREFIXES = ("/v1/", "/v2/", "/inference/")
"""Paths with counted misses.

`replay-miss: not-found` answers 404 to them, unless a rule of a test answers.
"""
RELAYED_PREFIXES = (
    *COUNTED_PREFIXES,
    "/tokenize",
    "/detokenize",
    "/pooling",
    "/classify",
    "/score",
    "/rerank",
)
"""Paths of misses that a target answers."""
TRANSIENT_STATUSES = frozenset((401, 403, 407, 408, 425, 429))
"""Statuses of answers that are not recorded, like all statuses from 500.

Such answers concern a client's key or the target's load.
"""
EXCLUDED_PREFIXES = ("/admin/", "/health", "/metrics", "/ready", "/ping")
"""Paths that this server always answers itself."""
SERVER_HEADERS = NOT_FORWARDED.union(("x-admin-key", "x-fault", "x-replay-miss", "x-return-error"))
"""Request headers for this server, which no target gets."""
UNREPLAYED_HEADERS = HOP_BY_HOP.union(("date", "server"))
"""Response headers that the server sets for its connection and time."""
CHUNK_STEPS = 8
"""Cost of writing a chunk, in steps of `Slices`."""
MAX_QUOTED_LENGTH = 40
"""Most characters of an invalid header in an error message."""


@dataclass(frozen=True, slots=True)
class ReplayServices:
    """The parts of a server that a replay uses.

    Attributes:
        body_limits: Limits for reading the bodies of requests.
        wheel: Calls when a chunk is due.
        now: Returns monotonic seconds, on the clock of the wheel.
        journal: Gets the texts of replayed answers.
        has_keys: Returns True if this server has API keys, so that a client's key is not for
            targets.
        bears_key: Returns True for a request with an API key, or if this server has none.
    """

    body_limits: BodyLimits
    wheel: TimerWheel
    now: Callable[[], float]
    journal: Journal
    has_keys: Callable[[], bool]
    bears_key: Callable[[RequestContext], bool]


class Replay(Middleware):
    """Answers requests from `recording`, at the recorded times.

    `miss` is the setting `replay-miss`. With "record", a target of `upstream` answers a miss, and
    the recording grows.
    """

    def __init__(
        self,
        recording: Recording,
        services: ReplayServices,
        miss: str = "simulate",
        upstream: Upstream | None = None,
    ) -> None:
        self.recording = recording
        self.equal_count = 0
        """Requests answered by an equal one."""
        self.similar_count = 0
        """Requests answered by a similar one."""
        self.missed_count = 0
        """Requests without a recorded answer."""
        self.faults = FaultInjection()
        """Injects faults into the answers; replaced when the pipeline exists."""
        self.reply_rules: Callable[[], ReplyRules | None] = _no_rules
        """Returns the rules that may answer a miss; replaced when the pipeline exists."""
        self._services = services
        self._now = services.now
        self._miss = miss
        self.upstream = upstream
        self._possible_misses = ["simulate", "not-found"]
        if recording.finds_similar:
            self._possible_misses.append("nearest")
        if upstream is not None:
            self._possible_misses.append("record")
        self._warned_clients: set[str] = set()
        """Clients of another version than the recorded one that the log has named."""
        self._open: WeakValueDictionary[bytes, RelayedExchange] = WeakValueDictionary()
        """Exchanges with targets by the keys of their requests."""

    def report(self) -> dict[str, object]:
        """Returns the counts that GET /admin/replay shows."""
        written = 0
        dropped = 0
        waiting = 0
        if self.upstream is not None:
            file = self.upstream.file
            self.recording.read_on()
            written = file.written
            dropped = file.dropped
            waiting = file.waiting
        lines = sorted(self.recording.use_counts.items())
        return {
            "recording": self.recording.path,
            "exchanges": len(self.recording),
            "equal": self.equal_count,
            "nearest": self.similar_count,
            "missed": self.missed_count,
            "recorded": written,
            "not_kept": dropped,
            "unwritten": waiting,
            "answers": [{"line": line, "times": times} for line, times in lines],
        }

    def begin(self, context: RequestContext) -> Response | None:
        """Returns the recorded answer, or a target's; None for a miss that is simulated.

        Raises:
            ApiError: 400 for an invalid header; 404 for a miss; 500 for a changed file; errors of
                the body and of the target.
        """
        if context.way == "probe" or context.path.startswith(EXCLUDED_PREFIXES):
            return None
        # vLLM leaves some routes open, such as /score, and every OPTIONS request. Without a key,
        # they must not lead to a target, whose key is the operator's, or to recorded answers.
        if not self._services.bears_key(context):
            return None
        begin_s = self._now()
        miss = context.headers.get(MISS.lower(), self._miss)
        if miss not in self._possible_misses:
            possible = ", ".join(self._possible_misses)
            raise bad_request(
                f"{MISS} must be one of {possible}, got {miss[:MAX_QUOTED_LENGTH]!r}."
            )
        body = self._services.body_limits.read(context)
        # Processing time since arrival counts against the schedule; waiting does not.
        request_s = context.arrival_s + self._now() - begin_s
        target = target_without_root_path(context)
        form = None
        if len(body) <= MAX_BODY_BYTES:  # recordings have no larger requests
            form = self._form_of(context, target, body)
            if self.upstream is not None and not self._has_equal(form):
                request_s += self._read_on(form, self.upstream)
            key = self.recording.find(form, allow_similar=miss == "nearest")
            if key is not None:
                if self.recording.by_turn:
                    self._warn_of_other_version(context)
                try:
                    return self._replayed(context, form, key, request_s)
                except RecordingError as error:
                    if self.upstream is None:
                        raise internal(str(error)) from None
                    # The file was changed in place, but the target has the answer.
                    self.recording.reload()
        return self._missing(context, miss, target, form)

    def _form_of(self, context: RequestContext, target: str, body: bytes) -> RequestForm:
        [masked] = call_long(len(body), masked_pieces, [body])
        return request_form(
            context.method,
            target,
            content_type=context.content_type or "",
            body=masked,
            with_features=self.recording.finds_similar,
            by_turn=self.recording.by_turn,
        )

    def _has_equal(self, form: RequestForm) -> bool:
        return self.recording.find(form, allow_similar=False) is not None

    def _replayed(
        self, context: RequestContext, form: RequestForm, key: bytes, request_s: float
    ) -> Response:
        """Returns the recorded answer.

        Raises:
            RecordingError: the file has changed.
        """
        if form.model is not None:
            self.faults.inject(context, form.model)
        answer = self.recording.next_answer(key)
        if key == form.key:
            self.equal_count += 1
        else:
            self.similar_count += 1
        self._complete_entry(context, form.model, answer)
        body = RecordedBody(
            answer=answer,
            wheel=self._services.wheel,
            now=self._now,
            request_s=request_s,
            connection=context.connection,
        )
        headers = _replayed_headers(answer.headers)
        if len(answer.chunks) >= 2 or answer.is_broken:
            response = Response(body, answer.status, headers)
        else:
            with closing(body):
                response = Response(b"".join(body), answer.status, streamed=True)
            if body.gone:
                return json_response(b"", CLIENT_GONE)
            if "Content-Length" in headers and context.method != "HEAD":
                headers["Content-Length"] = str(body.bytes_sent)
            response.headers = headers
            response.streamed = "Content-Length" not in headers
        return self.faults.damage(response, context)

    def _complete_entry(
        self, context: RequestContext, model: str | None, answer: RecordedAnswer
    ) -> None:
        """Adds text and usage of a chat or completion to the journal."""
        journal = self._services.journal
        if not journal.active or answer.status != 200:
            return
        with suppress(*INVALID):
            size = sum(len(chunk.data) for chunk in answer.chunks if isinstance(chunk.data, str))
            reply = call_long(size, reply_of, answer)
            if reply.finish:
                journal.complete(context, model, reply.text, reply.usage)

    def _read_on(self, form: RequestForm, upstream: Upstream) -> float:
        """Waits for an equal request in progress, and reads new lines; returns the seconds."""
        begin_s = self._now()
        exchange = self._open.get(form.key)
        if exchange is None:
            self._read_new_lines(upstream)
            if not self._has_equal(form):
                exchange = self._open.get(form.key)  # an equal request may have begun meanwhile
        if exchange is not None:
            exchange.over.wait(upstream.timeout_s)
            self._read_new_lines(upstream)
        return self._now() - begin_s

    def _read_new_lines(self, upstream: Upstream) -> None:
        upstream.file.wait()
        self.recording.read_on()

    def _missing(
        self, context: RequestContext, miss: str, target: str, form: RequestForm | None
    ) -> Response | None:
        """Handles a request without a recorded answer."""
        if context.method == "POST" and context.path.startswith(COUNTED_PREFIXES):
            self.missed_count += 1
            self._warn_of_other_version(context)
            if miss == "not-found":
                error = not_found("The recording does not contain a response to this request.")
                rules = self.reply_rules()
                if rules is None or not rules.may_answer(context):
                    raise error
                context.keep(NeedsRule(error))
        is_relayed = miss == "record" and context.path.startswith(RELAYED_PREFIXES)
        if is_relayed and self.upstream is not None:
            return self._relayed(context, target, form, self.upstream)
        return None

    def _warn_of_other_version(self, context: RequestContext) -> None:
        """Logs once that the recording was made with another version of this client."""
        client = client_of(context.headers.get("user-agent", ""))
        product, _, version = client.partition("/")
        if not version or client in self.recording.clients or client in self._warned_clients:
            return
        versions = [name for name in self.recording.clients if name.startswith(f"{product}/")]
        if not versions or len(self._warned_clients) >= MAX_CLIENTS:
            return
        self._warned_clients.add(client)
        log.warning(
            "%s was recorded with %s, but the client is %s; if the client does not understand the"
            " replies, record the session again",
            self.recording.path,
            ", ".join(sorted(versions)),
            client,
        )

    def _relayed(
        self,
        context: RequestContext,
        target: str,
        form: RequestForm | None,
        upstream: Upstream,
    ) -> Response:
        """Returns the answer of a target, which is passed on as it arrives, and recorded.

        Raises:
            ApiError: 400, 404, 502 or 504.
        """
        check_path(target)
        model = None if form is None else form.model
        if model is not None:
            self.faults.inject(context, model)
        dropped_headers = SERVER_HEADERS
        if self._services.has_keys():
            dropped_headers = dropped_headers.union(KEYS)
        headers = {
            name: value
            for name, value in context.headers.items()
            if value and name not in dropped_headers
        }
        exchange = RelayedExchange(
            upstream,
            context.method,
            target,
            headers=headers,
            client=context.connection,
            on_answer=partial(self._complete_entry, context, model),
        )
        if form is not None:
            self._open[form.key] = exchange
        exchange.add_piece("request", context.body or b"")
        exchange.ask(model, context.body or None)
        if exchange.status in TRANSIENT_STATUSES or exchange.status >= 500:
            exchange.give_up(f"an answer of status {exchange.status} may differ the next time")
        if self.recording.is_full:
            exchange.give_up("the recording is full")
        response = Response(exchange, exchange.status, _replayed_headers(exchange.headers))
        response.on_close(exchange.close)  # also where the body is not sent, as for HEAD
        return response


@dataclass(eq=False, repr=False, kw_only=True)
class RecordedBody(StreamingBody):
    """Yields the chunks of an answer at their times after `request_s`.

    Iterate once, in a greenlet; always close.
    """

    answer: RecordedAnswer
    wheel: TimerWheel
    now: Callable[[], float]
    """Returns monotonic seconds."""
    request_s: float
    """Time of the request, in monotonic seconds."""
    connection: ClientConnection | None

    def __post_init__(self) -> None:
        super().__init__()
        self._wake = Event()
        self._slices = Slices()
        self._has_ended = False

    def __iter__(self) -> Iterator[bytes]:
        answer = self.answer
        if self.connection is not None:
            self.connection.watch(self._leave)
        if self._wait_until(answer.head_s):
            yield b""  # status line and headers are sent now
        for chunk in answer.chunks:
            if not self._wait_until(chunk.at_s):
                return
            data = bytes_of(chunk.data)
            self.bytes_sent += len(data)
            yield data
        if self._wait_until(answer.end_s) and answer.is_broken:
            break_off(self.connection)

    def _wait_until(self, at_s: float) -> bool:
        """Sleeps until the recorded time `at_s`; returns False when the client has disconnected."""
        due_s = self.request_s + at_s
        if due_s <= self.now():
            self._slices.spend(CHUNK_STEPS)
        elif not self._has_ended:
            self._wake.clear()
            self.wheel.add(due_s, self)
            self._wake.wait()
        return not self._has_ended

    def _leave(self) -> None:
        self.gone = True
        self._end()

    def _end(self) -> None:
        self._has_ended = True
        self._wake.set()

    def close(self) -> None:
        """Ends the body."""
        if self.connection is not None:
            self.connection.unwatch()
        self._end()

    def run_due(self, now_s: float) -> None:
        """Called by the wheel when the next chunk is due."""
        self._wake.set()

    def fail(self, error: Exception) -> None:
        """Called by the wheel after an error."""
        self._end()


def _no_rules() -> None:
    """Returns no rules."""


def _replayed_headers(recorded_headers: Headers) -> dict[str, str]:
    """Returns the headers of an answer that are replayed.

    Masked headers, and headers that the server sets, are left out.
    """
    headers: dict[str, str] = {}
    for name, value in sendable(recorded_headers):
        if name.lower() in UNREPLAYED_HEADERS or value == MASK:
            continue
        name = name.title()
        if name in headers:
            value = f"{headers[name]}, {value}"
        headers[name] = value
    return headers
