"""Replays a recording: sends the recorded bytes at the recorded times."""

from collections.abc import Callable, Iterator
from contextlib import closing

from gevent.event import Event as Bell

from app.base.clock.clock import TimerWheel
from app.base.clock.pause import Slices, call_long
from app.serving.faults.fault import Fault, break_off, damage
from app.serving.faults.injector import FaultInjector
from app.serving.http.connection import Connection
from app.serving.http.context import BodyLimits, RequestContext
from app.serving.http.errors import internal, not_found
from app.serving.http.response import CLIENT_GONE, UNBUFFERED, Response, StreamingBody, json_response
from app.serving.middleware.masking import MASK
from app.serving.middleware.stack import Middleware
from app.serving.recording import exchange as recordings

PREFIXES = ("/v1/", "/v2/", "/inference/")
"""Paths with counted misses; `replay-miss: not-found` answers 404 to them."""
NEVER = ("/admin/", "/health", "/metrics", "/ready", "/ping")
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
    """Answers requests from `recording`, at its moments by `wheel`. With `refuses`, 404 answers a miss."""

    def __init__(
        self,
        recording: recordings.Recording,
        body: BodyLimits,
        faults: FaultInjector,
        wheel: TimerWheel,
        now: Callable[[], float],
        refuses: bool = False,
    ) -> None:
        self.recording = recording
        self.equal = self.alike = self.missed = 0
        """Requests answered by an equal one, by a similar one, and by none."""
        self._body, self._faults, self._refuses = body, faults, refuses
        self._wheel, self._now = wheel, now

    def report(self) -> dict[str, object]:
        lines = sorted(self.recording.given.items())
        return {
            "recording": self.recording.path,
            "exchanges": len(self.recording),
            "equal": self.equal,
            "nearest": self.alike,
            "missed": self.missed,
            "answers": [{"line": line, "times": times} for line, times in lines],
        }

    def begin(self, context: RequestContext) -> Response | None:
        if context.way == "probe" or context.path.startswith(NEVER):
            return None
        recording, came_s = self.recording, self._now()
        asked = self._body.read(context)
        # Processing time since arrival counts against the schedule; waiting for the request's body does not.
        asked_s = context.arrival_s + self._now() - came_s
        _, mark, query = context.target.partition("?")
        target, key = f"{context.path}{mark}{query}", None  # without root-path
        if len(asked) <= recordings.MOST_BODY_BYTES:  # recordings have no larger requests
            [masked] = call_long(len(asked), recordings.masked_pieces, [asked])
            form = recordings.form_of(
                context.method, target, context.content_type or "", masked, recording.alike
            )
            key = recording.find(form)
        if key is None:
            self._miss(context)
            return None
        if form.model is not None:
            self._faults.inject(context, form.model)
        self.equal += key == form.key
        self.alike += key != form.key
        try:
            answer = recording.next_answer(key)
        except recordings.RecordingError as error:
            raise internal(str(error)) from None
        body = RecordedBody(answer, self._wheel, self._now, asked_s, context.connection)
        headers = _headers(answer)
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

    def _miss(self, context: RequestContext) -> None:
        if context.method == "POST" and context.path.startswith(PREFIXES):
            self.missed += 1
            if self._refuses:
                raise not_found("The recording has no answer to this request.")


class RecordedBody(StreamingBody):
    """Yields the chunks of an answer, seconds after `asked_s`. Iterate once, in a greenlet; always close."""

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


def _headers(answer: recordings.RecordedAnswer) -> dict[str, str]:
    """Returns the recorded headers without masked ones and the server's own; streams are unbuffered."""
    headers: dict[str, str] = {}
    for name, value in recordings.sendable(answer.headers):
        if name.lower() in OURS or value == MASK:
            continue
        name = name.title()
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    if headers.get("Content-Type", "").startswith("text/event-stream"):
        headers.setdefault(UNBUFFERED, "no")
    return headers
