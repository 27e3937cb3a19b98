"""A client that sends a load to a live server, and measures the times of each response.

Each request is a greenlet that only stores bytes and the time after they were read. Responses are
parsed when the loop is idle. A burst of many streams, such as one step of an engine, therefore
delays recorded times only by the reads before, of 11 us each.

The time of the poll that found the bytes would hide these reads. But a busy machine can pause the
client between the poll and the read, which also returns the bytes of the meantime: they would have
come before the server sent them, and `understudy judge` would find that no clocks fit.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress

import gevent
from gevent.pool import Pool
from gevent.socket import wait
from msgspec import UNSET, Struct
from msgspec.json import encode

from app.core.server.http.event_stream import events_of
from app.shared.http_client import COMPLETIONS, JSON, ROUTED_TO, HttpConnection, Target
from config.untrusted import UntrustedDataError, decode_untrusted

HEAD_END = b"\r\n\r\n"
RECEIVE_BYTES = 1 << 14
"""Buffer of a read. Python allocates it for each read: 256 KiB took 17 us more."""
RESPONSE_TIMEOUT_S = 300.0
"""Longest pause of a response."""
MAX_RESPONSE_S = 3600.0
"""Longest time of a response."""
MAX_RESPONSE_BYTES = 64 << 20
"""Largest response: its pieces are kept until it ends. An event of a token takes some 200 bytes."""
CONNECT_TIMEOUT_S = 10.0

Pieces = list[tuple[float, bytes]]
"""Received bytes and their times in seconds."""


class RecordError(Exception):
    """A failure of the server, in one line."""


class StreamedChoice(Struct):
    """A choice in an event of a stream."""

    text: str | None = None


class PromptDetails(Struct):
    """Details of the prompt's tokens in the usage."""

    cached_tokens: int | None = None


class StreamedUsage(Struct):
    """Token counts in the last event of a stream."""

    prompt_tokens: int
    completion_tokens: int = 0
    prompt_tokens_details: PromptDetails | None = None

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens found in the cache; 0 if the server does not report them."""
        if self.prompt_tokens_details is None:
            return 0
        return self.prompt_tokens_details.cached_tokens or 0


class StreamEvent(Struct):
    """The fields of a stream's event that are read."""

    choices: Sequence[StreamedChoice] = ()
    usage: StreamedUsage | None = None
    error: object = UNSET


class PlannedRequest(Struct):
    """A request, due `arrival_s` seconds after the start."""

    arrival_s: float
    body: bytes
    output_tokens: int = 0
    """Tokens that the response must have; 0 accepts any number."""
    request_id: str = ""
    """Value of X-Request-Id; empty for none."""


class FailedRequest(Struct):
    """A request without a whole response; times in seconds since the start."""

    number: int
    arrival_s: float
    send_s: float
    end_s: float
    error: str


class RecordedRequest(Struct):
    """Result of a request; times in seconds since the start."""

    number: int
    arrival_s: float
    send_s: float
    first_s: float
    last_s: float
    input_tokens: int
    output_tokens: int
    text_s: float
    """Time of the first text; of the last token without any text."""
    cached_tokens: int
    pod: str
    """Pod that a proxy chose; empty without a proxy."""


def completion(model: str, prompt: str | list[int], tokens: int, **fields: object) -> bytes:
    """Returns the body of a request for a stream of `tokens` tokens, with their usage."""
    body = {"model": model, "prompt": prompt, "max_tokens": tokens, **fields, "ignore_eos": True}
    return encode({**body, "stream": True, "stream_options": {"include_usage": True}})


class RecordingClient:
    """Sends a load to a server, at most `in_flight` requests at a time.

    Several servers get the requests in turn.
    """

    def __init__(
        self,
        targets: Target | Sequence[Target],
        headers: dict[str, str],
        *,
        in_flight: int | None,
        now: Callable[[], float],
        on_send: Callable[[int], None],
        on_error: Callable[[str], None] | None = None,
    ) -> None:
        """`on_send` receives the number of requests sent so far.

        `on_error` receives the error of each failed request; without it the first failure ends the
        run.
        """
        self._targets = [targets] if isinstance(targets, Target) else targets
        self._heads = [_head(each, headers) for each in self._targets]
        self._greenlets = Pool(in_flight)
        self._now = now
        self._on_send = on_send
        self._on_error = on_error
        self.start_s = 0.0
        """Time of the start, by `now`."""
        self._recorded: list[RecordedRequest] = []
        self.failed: list[FailedRequest] = []
        """Failed requests, if `on_error` receives them."""

    def run(self, requests: Iterable[PlannedRequest]) -> list[RecordedRequest]:
        """Sends requests in order of arrival, and returns their results in this order.

        Raises:
            RecordError: A request failed; the message has its number.
        """
        self.start_s = self._now()
        caller = gevent.getcurrent()
        try:
            for number, request in enumerate(requests):
                self._sleep_until(request.arrival_s)
                self._greenlets.spawn(self._record, number, request, caller)
                self._on_send(number + 1)
            self._greenlets.join()
        finally:
            self._greenlets.kill()
        return sorted(self._recorded, key=lambda request: request.number)

    def _sleep_until(self, time_s: float) -> None:
        while True:
            remaining_s = time_s - self._elapsed_s()
            if remaining_s <= 0:
                return
            gevent.sleep(remaining_s)

    def _elapsed_s(self) -> float:
        return self._now() - self.start_s

    def _record(self, number: int, request: PlannedRequest, caller: gevent.Greenlet) -> None:
        start_s = self._elapsed_s()
        try:
            send_s, pieces = self._exchange(number, request)
            gevent.idle()
            self._recorded.append(parse_response(number, request, send_s, pieces))
        except (RecordError, OSError) as error:
            text = str(error)
            if isinstance(error, OSError):
                text = error.strerror or text
            if self._on_error is not None:
                self._on_error(text)
                self.failed.append(
                    FailedRequest(
                        number=number,
                        arrival_s=request.arrival_s,
                        send_s=start_s,
                        end_s=self._elapsed_s(),
                        error=text,
                    )
                )
            else:
                gevent.kill(caller, RecordError(f"request {number + 1}: {text}"))

    def _exchange(self, number: int, request: PlannedRequest) -> tuple[float, Pieces]:
        """Returns the time of sending, and the pieces of the response.

        The response ends with its connection.

        Raises:
            RecordError: The server cannot be reached, or sends too much, or for too long.
            OSError: The connection breaks off, or the response pauses for too long.
        """
        pieces: Pieces = []
        received_bytes = 0
        server = number % len(self._targets)
        target = self._targets[server]
        with closing(HttpConnection(target.address, CONNECT_TIMEOUT_S)) as connection:
            try:
                connection.connect()
            except OSError as error:
                raise RecordError(f"cannot connect: {error.strerror or error}") from None
            head = self._heads[server]
            if request.request_id:
                head += f"X-Request-Id: {request.request_id}\r\n"
            length = f"Content-Length: {len(request.body)}\r\n\r\n"
            send_s = self._elapsed_s()
            # A server that closes early has sent the reason in its response.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.sock.sendall(f"{head}{length}".encode() + request.body)
            readable = gevent.get_hub().loop.io(connection.sock.fileno(), 1)
            try:
                while True:
                    wait(readable, RESPONSE_TIMEOUT_S)
                    data = connection.sock.recv(RECEIVE_BYTES)
                    if not data:
                        return send_s, pieces
                    received_s = self._elapsed_s()
                    pieces.append((received_s, data))
                    received_bytes += len(data)
                    if received_bytes > MAX_RESPONSE_BYTES:
                        limit = f"{MAX_RESPONSE_BYTES >> 20} MiB"
                        raise RecordError(f"the response is larger than {limit}")
                    if received_s - send_s > MAX_RESPONSE_S:
                        raise RecordError(f"the response takes longer than {MAX_RESPONSE_S:g} s")
            finally:
                readable.close()


def _head(target: Target, headers: Mapping[str, str]) -> str:
    """Returns the request line and the header lines of each request to a server."""
    fields = {"Host": target.address, "Connection": "close", **JSON, **headers}
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"POST {target.prefix}{COMPLETIONS} HTTP/1.1\r\n{lines}"


def parse_response(
    number: int, request: PlannedRequest, send_s: float, pieces: Pieces
) -> RecordedRequest:
    """Reads a response.

    Raises:
        RecordError: The response is an error, has none or a wrong number of tokens, or is
            incomplete.
    """
    head, _, body = b"".join(data for _, data in pieces).partition(HEAD_END)
    status_line, *headers = head.split(b"\r\n")
    if b" 200 " not in status_line + b" ":
        raise RecordError(f"{one_line(status_line) or 'no response'}: {one_line(body)}")
    token_times_s: list[float] = []
    text_s: float | None = None
    usage: StreamedUsage | None = None
    for time_s, event in _events(pieces):
        if event.choices:
            token_times_s.append(time_s)
        if text_s is None and any(choice.text for choice in event.choices):
            text_s = time_s
        usage = event.usage or usage
    if not token_times_s or usage is None:
        raise RecordError("the stream lacks tokens or usage data")
    last_s = token_times_s[-1]
    if request.output_tokens not in (0, usage.completion_tokens):
        raise RecordError(
            f"the response has {usage.completion_tokens} output tokens, not the"
            f" {request.output_tokens} that ignore_eos and min_tokens require"
        )
    return RecordedRequest(
        number=number,
        arrival_s=request.arrival_s,
        send_s=send_s,
        first_s=token_times_s[0],
        last_s=last_s,
        input_tokens=usage.prompt_tokens,
        output_tokens=usage.completion_tokens,
        text_s=last_s if text_s is None else text_s,
        cached_tokens=usage.cached_tokens,
        pod=_pod_of(headers),
    )


def _pod_of(headers: Sequence[bytes]) -> str:
    for line in headers:
        name, _, value = line.partition(b":")
        if name.lower() == ROUTED_TO.encode():
            return value.strip().decode("latin-1")
    return ""


def _events(pieces: Pieces) -> Iterable[tuple[float, StreamEvent]]:
    """Yields the events before the end of a stream, with their times."""
    for time_s, server_event in events_of(pieces):
        if server_event.is_done:
            return
        try:
            event = decode_untrusted(server_event.data, type=StreamEvent)
        except UntrustedDataError as error:
            raise RecordError(f"invalid event in the stream: {error}") from None
        if event.error is not UNSET:
            raise RecordError(f"the stream contains an error: {one_line(server_event.data)}")
        yield time_s, event
    raise RecordError("the stream ended early")


def one_line(text: bytes) -> str:
    """Returns the beginning of a text on one line."""
    return " ".join(text.decode(errors="replace").split())[:200]
