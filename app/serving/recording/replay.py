"""Replays a recording: sends the recorded bytes at the recorded times."""

from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from weakref import WeakValueDictionary

from gevent.event import Event as Bell

from app.base.clock.clock import TimerWheel
from app.base.clock.pause import Slices, call_long
from app.serving.faults.damage import break_off, damage
from app.serving.faults.fault import Fault
from app.serving.faults.injector import FaultInjector
from app.serving.http.client import KEYS, NOT_FORWARDED
from app.serving.http.connection import Connection
from app.serving.http.context import BodyLimits, RequestContext
from app.serving.http.errors import bad_request, internal, not_found
from app.serving.http.response import (
    CLIENT_GONE,
    UNBUFFERED,
    Response,
    StreamingBody,
    json_response,
)
from app.serving.middleware.journal import Journal
from app.serving.middleware.masking import MASK
from app.serving.middleware.stack import Middleware
from app.serving.recording import exchange as recordings
from app.serving.recording.forwarding import check_path, own_target
from app.serving.recording.library import Recording
from app.serving.recording.recorder import RelayedExchange, Upstream

MISS = "X-Replay-Miss"
"""Header with another `replay-miss` for its request."""
PREFIXES = ("/v1/", "/v2/", "/inference/")
"""Paths with counted misses; `replay-miss: not-found` answers 404 to them."""
ASKED = (*PREFIXES, "/tokenize", "/detokenize", "/pooling", "/classify", "/score", "/rerank")
"""Paths of misses that a target is asked for."""
PASSING = frozenset((401, 403, 407, 408, 425, 429))
"""Statuses that are not kept, nor are 500 and above:

they concern a client's key or the target's load.
"""
NEVER = ("/admin/", "/health", "/metrics", "/ready", "/ping")
OWN_HEADERS = NOT_FORWARDED.union(("x-admin-key", "x-fault", "x-replay-miss", "x-return-error"))
"""Headers for this server, which no target gets."""
OURS = frozenset(
    (
        *("connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"),
        *("proxy-authenticate", "proxy-authorization", "date", "server"),
    )
)
"""Headers that the server sets for its own connection and time; never replayed."""
CHUNK_STEPS = 8
"""Cost of writing a chunk, in steps of `Slices`."""


class Replay(Middleware):
    """Answers requests from `recording`, at its moments by `wheel`; `miss` is the setting
    `replay-miss`.

    With "record", a target of `upstream` answers a miss, and the recording grows.
    """

    def __init__(
        self,
        recording: Recording,
        body: BodyLimits,
        faults: FaultInjector,
        wheel: TimerWheel,
        now: Callable[[], float],
        journal: Journal,
        miss: str = "simulate",
        upstream: Upstream | None = None,
        has_keys: Callable[[], bool] = lambda: False,
    ) -> None:
        """`has_keys`: this server has API keys, so that a client's key is not for targets."""
        self.recording = recording
        self.equal = self.alike = self.missed = 0
        """Requests answered by an equal one, by a similar one, and by none."""
        self._body, self._faults, self._miss, self.upstream = body, faults, miss, upstream
        self._wheel, self._now, self._has_keys, self._journal = wheel, now, has_keys, journal
        kinds = {"nearest": recording.alike, "record": upstream is not None}
        self._kinds = [
            "simulate",
            "not-found",
            *(kind for kind, is_possible in kinds.items() if is_possible),
        ]
        self._open: WeakValueDictionary[bytes, RelayedExchange] = WeakValueDictionary()
        """Exchanges with targets by the keys of their requests."""

    def report(self) -> dict[str, object]:
        file = None if self.upstream is None else self.upstream.file
        if file is not None:
            self.recording.read_on()
        lines = sorted(self.recording.given.items())
        return {
            "recording": self.recording.path,
            "exchanges": len(self.recording),
            "equal": self.equal,
            "nearest": self.alike,
            "missed": self.missed,
            "recorded": 0 if file is None else file.kept,
            "not_kept": 0 if file is None else file.left_out,
            "unwritten": 0 if file is None else file.waiting,
            "answers": [{"line": line, "times": times} for line, times in lines],
        }

    def begin(self, context: RequestContext) -> Response | None:
        if context.way == "probe" or context.path.startswith(NEVER):
            return None
        came_s, miss = self._now(), context.headers.get(MISS.lower(), self._miss)
        if miss not in self._kinds:
            raise bad_request(
                f"{MISS} must be one of {', '.join(self._kinds)} here, got {miss[:40]!r}."
            )
        asked = self._body.read(context)
        # Processing time since arrival counts against the schedule; waiting does not.
        asked_s = context.arrival_s + self._now() - came_s
        target = own_target(context)
        form = None
        key = None
        if len(asked) <= recordings.MOST_BODY_BYTES:  # recordings have no larger requests
            [masked] = call_long(len(asked), recordings.masked_pieces, [asked])
            known, kind = self.recording, context.content_type or ""
            form = recordings.form_of(context.method, target, kind, masked, known.alike)
            if self.upstream is not None and known.find(form, alike=False) is None:
                asked_s += self._read_on(form, self.upstream)
            key = known.find(form, miss == "nearest")
        if key is not None and form is not None:
            try:
                return self._replayed(context, form, key, asked_s)
            except recordings.RecordingError as error:
                if self.upstream is None:
                    raise internal(str(error)) from None
                self.recording.reload()  # the file was changed in place: the target knows the answer
        return self._missing(context, miss, target, form)

    def _replayed(
        self, context: RequestContext, form: recordings.RequestForm, key: bytes, asked_s: float
    ) -> Response:
        """Returns the recorded answer.

        Raises recordings.RecordingError for a file that has changed.
        """
        if form.model is not None:
            self._faults.inject(context, form.model)
        answer = self.recording.next_answer(key)
        self.equal += key == form.key
        self.alike += key != form.key
        self._note(context, form.model, answer)
        body = RecordedBody(answer, self._wheel, self._now, asked_s, context.connection)
        headers = _headers(answer.headers)
        response = Response(body, answer.status, headers)
        if len(answer.chunks) < 2 and not answer.is_broken:
            with closing(body):
                response = Response(b"".join(body), answer.status, streamed=True)
            if body.gone:
                return json_response(b"", CLIENT_GONE)
            if "Content-Length" in headers and context.method != "HEAD":
                headers["Content-Length"] = str(body.bytes_sent)
            response.headers = headers
        return damage(response, context.kept(Fault), context)

    def _note(
        self, context: RequestContext, model: str | None, answer: recordings.RecordedAnswer
    ) -> None:
        """Notes text and usage of a chat or completion in the journal."""
        if not self._journal.active or answer.status != 200:
            return
        with suppress(*recordings.BROKEN):
            size = sum(len(chunk.data) for chunk in answer.chunks if isinstance(chunk.data, str))
            reply = call_long(size, recordings.reply_of, answer)
            if reply.finish:
                self._journal.note(context, model, reply.text, reply.usage)

    def _read_on(self, form: recordings.RequestForm, upstream: Upstream) -> float:
        """Waits for an equal request that is under way, reads new lines, and returns the seconds."""
        began_s = self._now()
        exchange = self._open.get(form.key)
        if exchange is None:
            self._read_new_lines(upstream)
            if self.recording.find(form, alike=False) is None:
                exchange = self._open.get(form.key)  # an equal request may have asked meanwhile
        if exchange is not None:
            exchange.over.wait(upstream.timeout_s)
            self._read_new_lines(upstream)
        return self._now() - began_s

    def _read_new_lines(self, upstream: Upstream) -> None:
        upstream.file.wait()
        self.recording.read_on()

    def _missing(
        self, context: RequestContext, miss: str, target: str, form: recordings.RequestForm | None
    ) -> Response | None:
        counts = context.method == "POST" and context.path.startswith(PREFIXES)
        self.missed += counts
        if miss == "not-found" and counts:
            raise not_found("The recording has no answer to this request.")
        if miss == "record" and self.upstream is not None and context.path.startswith(ASKED):
            return self._relayed(context, target, form, self.upstream)
        return None

    def _relayed(
        self,
        context: RequestContext,
        path: str,
        form: recordings.RequestForm | None,
        upstream: Upstream,
    ) -> Response:
        """Asks the target, whose answer passes as it comes, and is kept.

        ApiError 400, 404, 502 or 504.
        """
        check_path(path)
        model = None if form is None else form.model
        if model is not None:
            self._faults.inject(context, model)
        left_out = OWN_HEADERS.union(KEYS if self._has_keys() else ())
        headers = {
            name: value for name, value in context.headers.items() if value and name not in left_out
        }
        exchange = RelayedExchange(
            upstream,
            context.method,
            path,
            headers,
            context.connection,
            lambda it: self._note(context, model, it.answer()),
        )
        if form is not None:
            self._open[form.key] = exchange
        exchange.take("request", context.body or b"")
        exchange.ask(model, context.body or None)
        if exchange.status in PASSING or exchange.status >= 500:
            exchange.give_up(f"an answer of status {exchange.status} may be another the next time")
        if self.recording.is_full:
            exchange.give_up("the recording is full")
        response = Response(exchange, exchange.status, _headers(exchange.headers))
        response.on_close(exchange.close)  # also where the body is left out, as for HEAD
        return response


class RecordedBody(StreamingBody):
    """Yields the chunks of an answer, seconds after `asked_s`.

    Iterate once, in a greenlet; always close.
    """

    def __init__(
        self,
        answer: recordings.RecordedAnswer,
        wheel: TimerWheel,
        now: Callable[[], float],
        asked_s: float,
        connection: Connection | None,
    ) -> None:
        super().__init__()
        self._answer, self._wheel, self._now = answer, wheel, now
        self._asked_s, self._connection = asked_s, connection
        self._bell, self._slices, self._is_over = Bell(), Slices(), False

    def __iter__(self) -> Iterator[bytes]:
        answer = self._answer
        if self._connection is not None:
            self._connection.watch(self._leave)
        if self._wait_for(answer.head_s):
            yield b""  # status line and headers leave now
        for chunk in answer.chunks:
            if not self._wait_for(chunk.at_s):
                return
            data = recordings.bytes_of(chunk.data)
            self.bytes_sent += len(data)
            yield data
        if self._wait_for(answer.end_s) and answer.is_broken:
            break_off(self._connection)

    def _wait_for(self, at_s: float) -> bool:
        """Sleeps until the recorded time `at_s`; False when the client has left."""
        due_s = self._asked_s + at_s
        if due_s <= self._now():
            self._slices.spend(CHUNK_STEPS)
        elif not self._is_over:
            self._bell.clear()
            self._wheel.add(due_s, self)
            self._bell.wait()
        return not self._is_over

    def _leave(self) -> None:
        self.gone = True
        self._end()

    def _end(self) -> None:
        self._is_over = True
        self._bell.set()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.unwatch()
        self._end()

    def turn(self, now_s: float) -> None:
        self._bell.set()

    def fail(self, error: Exception) -> None:
        self._end()


def _headers(given: recordings.Headers) -> dict[str, str]:
    """Returns headers of an answer without masked ones and the server's own; streams are
    unbuffered.
    """
    headers: dict[str, str] = {}
    for name, value in recordings.sendable(given):
        if name.lower() in OURS or value == MASK:
            continue
        name = name.title()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if headers.get("Content-Type", "").startswith("text/event-stream"):
        headers.setdefault(UNBUFFERED, "no")
    return headers
