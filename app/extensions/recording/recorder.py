"""Relays requests to targets, and records the exchanges.

Used by the proxy, and by a recording that grows. Start with `RelayedExchange`. Answers are
requested without a content coding, so that secrets can be found. When an exchange ends, it is
masked and appended to the file (`app.extensions.recording.writer`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from functools import partial

import gevent
from gevent.event import Event
from msgspec import Struct
from urllib3 import BaseHTTPResponse

from app.core.server.http.client_connection import ClientConnection
from app.core.server.http.errors import ApiError, not_found, timed_out
from app.core.server.http.response import StreamingBody, error_event
from app.core.server.middleware.masking import mask_headers, mask_query
from app.extensions.recording.exchange import (
    MAX_BODY_BYTES,
    Exchange,
    RecordedAnswer,
    RecordedChunk,
    RecordedRequest,
    data_of,
    header_of,
    line_of,
    masked_pieces,
    sendable,
)
from app.extensions.recording.writer import RecordingFile
from app.shared.break_off import break_off
from app.shared.http_client import HttpConnection, Target
from app.shared.relay import HOP_BY_HOP, READ_TIMEOUT_S, relayed, watching

PIECE_OVERHEAD_BYTES = 200
"""Memory overhead of a part, in bytes."""
MAX_PIECES = 100_000
"""Most parts of a recorded answer; masking and writing more would delay other requests."""
CLOSE_GRACE_S = 0.2
"""Grace in seconds for clients that disconnect at a stream's last event.

They may do so before the target ends the answer.
"""
STATUSES_WITHOUT_BODY = (204, 304)


class Upstream(Struct, frozen=True):
    """Targets by model, and the file with their exchanges.

    The target of "" serves all other models.
    """

    targets: Mapping[str, Target]
    file: RecordingFile
    timeout_s: float = READ_TIMEOUT_S
    max_bytes: int = MAX_BODY_BYTES
    """Largest recorded body, in bytes."""

    def target_of(self, model: str | None) -> Target:
        """Returns the target for a model.

        Raises:
            ApiError: 404 without a target.
        """
        target = self.targets.get(model or "") or self.targets.get("")
        if target is None:
            subject = f"the model `{model}`" if model else "requests without one"
            models = ", ".join(self.targets)
            raise not_found(f"No target serves {subject}. Models with a target: {models}.", "model")
        return target


class RelayedExchange(StreamingBody):
    """A request to a target, and its answer as it arrives.

    Iterate once, in a greenlet; always close. Holds the parts received so far while each body is
    within the limit; `close` passes the exchange to the file.
    """

    def __init__(
        self,
        upstream: Upstream,
        method: str,
        target: str,
        headers: Mapping[str, str],
        client: ClientConnection | None,
        on_answer: Callable[[RecordedAnswer], None] | None = None,
    ) -> None:
        """`on_answer` is called with the whole answer, before the client has its end."""
        super().__init__()
        self._on_answer = on_answer
        self.excuse = ""
        """Reason for dropping the exchange; empty while it is recorded."""
        self.method = method
        self.target = target
        self._request_headers = headers
        self.headers: list[tuple[str, str]] = []
        self.status = 0
        self.reason = ""
        self.over = Event()
        """Set when the exchange has ended."""
        self.settled = Event()
        """Set when the exchange is written or dropped, and when writing takes long."""
        now_s = upstream.file.now()
        self._arrival_s = now_s
        self._sent_s = now_s
        self._head_s = now_s
        self._end_s = now_s
        self._is_broken = False
        self._has_ended = False
        self._upstream = upstream
        self._file = upstream.file
        self._client = client
        self._exit_stack = ExitStack()
        self._exit_stack.callback(self._end)
        self._sizes = Counter[str]()
        """Bytes of the "request" and of the "answer"."""
        self._held_bytes = 0
        self._pieces: defaultdict[str, list[tuple[float, bytes]]] = defaultdict(list)
        """Parts of the "request" and of the "answer", each with its time."""

    def ask(self, model: str | None, body: bytes | Iterable[bytes] | None) -> None:
        """Sends the request, and receives status and headers.

        Raises:
            ApiError: 404, 502 or 504 without an answer.
        """
        try:
            target = self._upstream.target_of(model)
            self._response = self._send(target, body)
        except TimeoutError:
            self.give_up(f"{target.url} did not answer within {self._upstream.timeout_s:g} s")
            raise timed_out(f"{self.excuse}.") from None
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error) or repr(error)
            self.give_up(f"{target.url} gave no answer: {reason}")
            raise ApiError(502, "Bad Gateway", f"{self.excuse}.") from None
        except ApiError as error:
            self.give_up(error.message)
            raise
        finally:
            if not self.status:
                self.close()

    def _send(self, target: Target, body: bytes | Iterable[bytes] | None) -> BaseHTTPResponse:
        # The client asks for no content coding where the client's header is not passed on.
        headers = dict(target.with_key(self._request_headers))
        headers.pop("accept-encoding", None)
        connection = target.connection(self._upstream.timeout_s)
        self._exit_stack.enter_context(closing(connection))
        connection.connect()
        # An early answer may close the connection.
        with suppress(BrokenPipeError, ConnectionResetError):
            connection.request(self.method, target.prefix + self.target, body, headers)
        self._sent_s = self._file.now()
        self._exit_stack.enter_context(
            watching(self._client, partial(self._client_left, connection))
        )
        response = connection.getresponse()
        self._head_s = self._file.now()
        self.status = response.status
        self.reason = response.reason or ""
        dropped_headers = HOP_BY_HOP
        # A length without a body would break the client's connection.
        if response.length_remaining is None or response.status in STATUSES_WITHOUT_BODY:
            dropped_headers = dropped_headers | {"content-length"}
        self.headers = sendable(
            [
                (name, value)
                for name, value in response.headers.items()
                if name.lower() not in dropped_headers
            ]
        )
        return response

    def _client_left(self, connection: HttpConnection) -> None:
        gevent.sleep(CLOSE_GRACE_S)
        self._leave()
        connection.cut()

    def __iter__(self) -> Iterator[bytes]:
        yield b""  # status line and headers are sent now
        try:
            for piece in relayed(self._response, self._upstream.timeout_s):
                self.add_piece("answer", piece)
                self.bytes_sent += len(piece)
                yield piece
            self._has_ended = True
            if self._on_answer is not None:
                self._on_answer(self.answer())
        except ConnectionResetError as error:
            self._is_broken = True
            self._has_ended = True
            if self.gone:
                return
            if isinstance(error.__cause__, TimeoutError):
                self.give_up(f"its answer did not continue within {self._upstream.timeout_s:g} s")
                content_type = header_of(self.headers, "content-type")
                if content_type.startswith("text/event-stream"):
                    yield error_event(timed_out("The target's answer did not go on in time."))
            break_off(self._client)
        finally:
            self._end_s = self._file.now()

    def add_piece(self, message: str, piece: bytes) -> None:
        """Records a piece of the "request" or of the "answer"."""
        held_bytes = len(piece) + PIECE_OVERHEAD_BYTES
        max_bytes = self._upstream.max_bytes
        self._sizes[message] += len(piece)
        if self._sizes[message] > max_bytes:
            self.give_up(f"its {message} is larger than {max_bytes >> 20} MiB")
        elif len(self._pieces["answer"]) == MAX_PIECES:
            self.give_up(f"its answer has more than {MAX_PIECES} pieces")
        elif held_bytes > self._file.free_bytes:
            self.give_up("too much is under way")
        if not self.excuse:
            self._held_bytes += held_bytes
            self._file.free_bytes -= held_bytes
            self._pieces[message].append((self._file.now(), piece))

    def give_up(self, reason: str) -> None:
        """Stops recording the exchange; the answer is still passed on."""
        self.excuse = self.excuse or reason
        self.release()

    def release(self) -> None:
        """Frees the bodies."""
        self._file.free_bytes += self._held_bytes
        self._held_bytes = 0
        self._pieces.clear()

    def _leave(self) -> None:
        self.gone = True
        self.give_up("the client left")

    def close(self) -> None:
        """Ends the exchange, and passes it to the file."""
        self._exit_stack.close()

    def _end(self) -> None:
        if not self._has_ended:
            self._leave()
        self._file.put(self)
        self.over.set()

    def answer(self) -> RecordedAnswer:
        """Returns the answer as it arrived, without times: secrets are not masked."""
        chunks = [RecordedChunk(0.0, data_of(piece)) for _, piece in self._pieces["answer"]]
        return RecordedAnswer(
            status=self.status, headers=self.headers, head_s=0.0, chunks=chunks, end_s=0.0
        )

    def line(self, began_s: float) -> bytes:
        """Encodes the exchange as a line of a file that began at `began_s`, in monotonic seconds.

        Raises:
            HiddenSecretsError: a body cannot be masked.
        """
        request = self._masked_request()
        answer = self._masked_answer()
        return line_of(Exchange(round(self._arrival_s - began_s, 6), request, answer))

    def _masked_request(self) -> RecordedRequest:
        body = b"".join(piece for _, piece in self._pieces["request"])
        [masked_body] = masked_pieces([body], self._request_headers.get("content-encoding", ""))
        return RecordedRequest(
            method=self.method,
            target=mask_query(self.target),
            headers=mask_headers(self._request_headers.items()),
            body=data_of(masked_body),
        )

    def _masked_answer(self) -> RecordedAnswer:
        pieces = self._pieces["answer"]
        masked = masked_pieces(
            [piece for _, piece in pieces], header_of(self.headers, "content-encoding")
        )
        chunks = [
            RecordedChunk(round(at_s - self._sent_s, 6), data_of(piece))
            for (at_s, _), piece in zip(pieces, masked, strict=True)
        ]
        headers = mask_headers(self.headers)
        length = sum(map(len, masked))
        # Masking may have changed the length. The answer to a HEAD request has no body.
        if length and not self._is_broken:
            for index, (name, _) in enumerate(headers):
                if name.lower() == "content-length":
                    headers[index] = (name, str(length))
        return RecordedAnswer(
            status=self.status,
            headers=headers,
            head_s=round(self._head_s - self._sent_s, 6),
            chunks=chunks,
            end_s=round(self._end_s - self._sent_s, 6),
            is_broken=self._is_broken,
        )
