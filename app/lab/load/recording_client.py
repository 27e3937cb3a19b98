"""A measuring client: sends requests at their times and records the arrival of each piece.

Each request is a greenlet that only stores bytes. All bytes found by one poll of the event loop get the
poll's time. Responses are parsed when the loop is idle. A burst of many streams, such as one step of an
engine, therefore delays no recorded time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress

import gevent
from gevent.pool import Pool
from gevent.socket import wait
from msgspec import UNSET, MsgspecError, Struct
from msgspec.json import decode, encode

from app.serving.http.client import COMPLETIONS, JSON, ROUTED_TO, HttpConnection, Target

HEAD_END = b"\r\n\r\n"
DATA, DONE = b"data: ", b"[DONE]"
RECEIVE_BYTES = 1 << 18
PATIENCE_S = 300.0
"""Longest pause of a response in seconds."""
CONNECT_S = 10.0

Pieces = list[tuple[float, bytes]]
"""Received bytes and their times in seconds."""


class RecordError(Exception):
    """A failure of the server, in one line."""


class StreamedChoice(Struct):
    text: str | None = None


class PromptDetails(Struct):
    cached_tokens: int | None = None


class StreamedUsage(Struct):
    """Token counts in the last event of a stream."""

    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None


class Event(Struct):
    """An event of a stream, with the fields that are read."""

    choices: Sequence[StreamedChoice] = ()
    usage: StreamedUsage | None = None
    error: object = UNSET


class Wanted(Struct):
    """A request, due `arrival_s` seconds after the start. With 0 output tokens, any number is right."""

    arrival_s: float
    body: bytes
    output_tokens: int = 0


class Measured(Struct):
    """Result of a request; seconds since the start."""

    number: int
    arrival_s: float
    send_s: float
    first_s: float
    last_s: float
    input_tokens: int
    output_tokens: int
    text_s: float
    """Time of the first text; of the last token without any."""
    cached_tokens: int
    pod: str
    """Pod that a proxy chose; empty without a proxy."""


def completion(model: str, prompt: str | list[int], tokens: int, **more: object) -> bytes:
    """Returns the body of a request for a stream of `tokens` tokens, with their usage."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, **more, "ignore_eos": True}
    return encode({**body, "stream": True, "stream_options": {"include_usage": True}})


class RecordingClient:
    """Sends a load to a server, at most `in_flight` requests at a time."""

    def __init__(
        self,
        target: Target,
        headers: dict[str, str],
        in_flight: int | None,
        now: Callable[[], float],
        progress: Callable[[int], None],
        failed: Callable[[str], None] | None = None,
    ) -> None:
        """`failed` receives the error of each failed request; without it the first failure ends the run."""
        self._target = target
        given = {"Host": target.address, "Connection": "close", **JSON, **headers}
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in given.items())
        self._running = Pool(in_flight)
        self._now, self._progress, self._failed = now, progress, failed
        self._start_s = self._woken_s = 0.0
        self._measured: list[Measured] = []

    def run(self, requests: Iterable[Wanted]) -> list[Measured]:
        """Sends requests in order of arrival. Raises RecordError, with the request's number, at a failure."""
        self._start_s = self._now()
        caller, loop = gevent.getcurrent(), gevent.get_hub().loop
        look = loop.check(ref=False, priority=loop.MAXPRI)
        look.start(self._look)
        try:
            for number, wanted in enumerate(requests):
                while (left_s := wanted.arrival_s - self._passed_s()) > 0:
                    gevent.sleep(left_s)
                self._running.spawn(self._measure, number, wanted, caller)
                self._progress(number + 1)
            self._running.join()
        finally:
            look.stop()
            look.close()
            self._running.kill()
        return sorted(self._measured, key=lambda it: it.number)

    def _look(self) -> None:
        self._woken_s = self._passed_s()

    def _passed_s(self) -> float:
        return self._now() - self._start_s

    def _measure(self, number: int, wanted: Wanted, caller: gevent.Greenlet) -> None:
        try:
            send_s, pieces = self._exchange(wanted)
            gevent.idle()
            self._measured.append(_measured(number, wanted, send_s, pieces))
        except (RecordError, OSError) as error:
            text = str(error) if isinstance(error, RecordError) else error.strerror or str(error)
            if self._failed is not None:
                self._failed(text)
            else:
                gevent.kill(caller, RecordError(f"request {number + 1}: {text}"))

    def _exchange(self, wanted: Wanted) -> tuple[float, Pieces]:
        """Returns the time of sending, and the pieces of the response, which ends with its connection."""
        pieces: Pieces = []
        with closing(HttpConnection(self._target.address, CONNECT_S)) as connection:
            try:
                connection.connect()
            except OSError as error:
                raise RecordError(f"cannot connect: {error.strerror or error}") from None
            head = f"POST {self._target.prefix}{COMPLETIONS} HTTP/1.1\r\n{self._headers}"
            request = f"{head}Content-Length: {len(wanted.body)}\r\n\r\n".encode() + wanted.body
            send_s = self._passed_s()
            with suppress(BrokenPipeError, ConnectionResetError):  # the response so far has the reason
                connection.sock.sendall(request)
            readable = gevent.get_hub().loop.io(connection.sock.fileno(), 1)
            try:
                while True:
                    wait(readable, PATIENCE_S)
                    at_s = self._woken_s
                    data = connection.sock.recv(RECEIVE_BYTES)
                    if not data:
                        return send_s, pieces
                    pieces.append((at_s, data))
            finally:
                readable.close()


def _measured(number: int, wanted: Wanted, send_s: float, pieces: Pieces) -> Measured:
    """Reads a response. Raises RecordError for an error or a wrong number of output tokens."""
    head, _, body = b"".join(data for _, data in pieces).partition(HEAD_END)
    status, *headers = head.split(b"\r\n")
    if b" 200 " not in status + b" ":
        raise RecordError(f"{one_line(status) or 'no answer'}: {one_line(body)}")
    moments, text_s, usage = _read_stream(pieces)
    if wanted.output_tokens not in (0, usage.completion_tokens):
        raise RecordError(
            f"has {usage.completion_tokens} output tokens, not the {wanted.output_tokens} asked for"
            " with ignore_eos and min_tokens"
        )
    pods = (line.partition(b":")[2] for line in headers if line.lower().startswith(ROUTED_TO.encode() + b":"))
    cached = usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens
    pod = next(pods, b"").strip().decode("latin-1")
    sizes = usage.prompt_tokens, usage.completion_tokens
    first_s, last_s = moments[0], moments[-1]
    text_s = last_s if text_s is None else text_s
    return Measured(number, wanted.arrival_s, send_s, first_s, last_s, *sizes, text_s, cached or 0, pod)


def _read_stream(pieces: Pieces) -> tuple[list[float], float | None, StreamedUsage]:
    """Returns the times of a whole stream's events and of its first text, and its token counts."""
    moments: list[float] = []
    text_s: float | None = None
    usage: StreamedUsage | None = None
    for at_s, line in _lines(pieces):
        if not line.startswith(DATA):
            continue
        if (data := line.removeprefix(DATA).strip()) == DONE:
            break
        try:
            event = decode(data, type=Event)
        except MsgspecError as error:
            raise RecordError(f"an event of its stream cannot be read: {error}") from None
        if event.error is not UNSET:
            raise RecordError(f"its stream has an error: {one_line(data)}")
        if event.choices:
            moments.append(at_s)
        if text_s is None and any(choice.text for choice in event.choices):
            text_s = at_s
        usage = event.usage or usage
    else:
        raise RecordError("its stream broke off")
    if not moments or usage is None:
        raise RecordError("its stream has no tokens, or no usage")
    return moments, text_s, usage


def _lines(pieces: Pieces) -> Iterator[tuple[float, bytes]]:
    rest = b""
    for at_s, data in pieces:
        *lines, rest = (rest + data).split(b"\n")
        yield from ((at_s, line) for line in lines)


def one_line(text: bytes) -> str:
    return " ".join(text.decode(errors="replace").split())[:200]
