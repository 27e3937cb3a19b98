"""Relays requests to targets and keeps the exchanges: for the proxy, and for a recording that
grows.

Answers are requested without a content coding, so that secrets can be found. When an exchange ends,
it is masked and appended to the file (`app.serving.recording.writer`).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, suppress
from http.client import HTTPException, HTTPResponse

import gevent
from gevent.event import Event
from msgspec import Struct

from app.serving.faults.damage import break_off
from app.serving.http import client as http
from app.serving.http.connection import Connection
from app.serving.http.errors import ApiError, not_found, timed_out
from app.serving.http.response import StreamingBody, error_event
from app.serving.middleware.masking import mask_headers, mask_query
from app.serving.recording import exchange as recordings
from app.serving.recording.writer import RecordingFile

PIECE_BYTES = 200
"""Memory overhead of a part, in bytes."""
MOST_PIECES = 100_000
"""Most parts of a recorded answer; masking and writing more would delay other requests."""
PARTING_S = 0.2
"""Grace in seconds:

a client may leave at a stream's last event, before the server ends the answer.
"""


class Upstream(Struct, frozen=True):
    """Targets by model, and the file with their exchanges; the target of "" serves all other
    models.
    """

    targets: Mapping[str, http.Target]
    file: RecordingFile
    timeout_s: float = http.READ_TIMEOUT_S
    most_bytes: int = recordings.MOST_BODY_BYTES

    def target_of(self, model: str | None) -> http.Target:
        """Returns the target for a model. ApiError 404 without one."""
        target = self.targets.get(model or "") or self.targets.get("")
        if target is None:
            what, known = (
                f"the model `{model}`" if model else "requests without one",
                ", ".join(self.targets),
            )
            raise not_found(f"No target serves {what}; targets serve: {known}.", "model")
        return target


class RelayedExchange(StreamingBody):
    """A request to a target, and its answer as it comes. Iterate once, in a greenlet; always close.

    Holds the parts received so far while each body is within the limit; `close` keeps the exchange.
    """

    def __init__(
        self,
        upstream: Upstream,
        method: str,
        target: str,
        headers: Mapping[str, str],
        client: Connection | None,
        ended: Callable[["RelayedExchange"], None] = lambda exchange: None,
    ) -> None:
        """`ended` is called with the whole answer, before the client has its end."""
        super().__init__()
        self._ended = ended
        self.excuse = ""
        """Reason for dropping the exchange; empty while it is recorded."""
        self.method, self.target, self._asked_headers = method, target, headers
        self.headers: list[tuple[str, str]] = []
        self.status, self.reason = 0, ""
        self.over = Event()
        self.settled = Event()
        """Set when the exchange is written or dropped, and when writing takes long."""
        self._at_s = self._asked_s = self._head_s = self._end_s = upstream.file.now()
        self._is_broken = self._has_ended = False
        self._upstream, self._file, self._client = upstream, upstream.file, client
        self._ends = ExitStack()
        self._ends.callback(self._keep)
        self._sizes, self._held = Counter[str](), 0
        self._pieces: defaultdict[str, list[tuple[float, bytes]]] = defaultdict(list)

    def ask(self, model: str | None, body: bytes | Iterable[bytes] | None) -> None:
        """Sends the request, and receives status and headers.

        ApiError 404, 502 or 504 without an answer.
        """
        try:
            target, limit_s = self._upstream.target_of(model), self._upstream.timeout_s
            self._response = self._ask(target, body)
        except TimeoutError:
            self.give_up(f"{target.url} did not answer within {limit_s:g} s")
            raise timed_out(f"{self.excuse}.") from None
        except (OSError, HTTPException, ValueError) as error:
            why = getattr(error, "strerror", None) or repr(error)
            self.give_up(f"{target.url} gave no answer: {why}")
            raise ApiError(502, "Bad Gateway", f"{self.excuse}.") from None
        except ApiError as error:
            self.give_up(error.message)
            raise
        finally:
            if not self.status:
                self.close()

    def _ask(self, target: http.Target, body: bytes | Iterable[bytes] | None) -> HTTPResponse:
        # http.client asks for no content coding where the client's header is not passed on.
        headers = {
            k: v for k, v in target.with_key(self._asked_headers).items() if k != "accept-encoding"
        }
        connection = self._ends.enter_context(closing(target.connection(self._upstream.timeout_s)))

        def left() -> None:
            gevent.sleep(PARTING_S)
            self._leave()
            connection.cut()

        connection.connect()
        with suppress(
            BrokenPipeError, ConnectionResetError
        ):  # an early answer may close the connection
            connection.request(self.method, target.prefix + self.target, body, headers)
        self._asked_s = self._file.now()
        self._ends.enter_context(http.watching(self._client, left))
        response = connection.getresponse()
        self._head_s, self.status, self.reason = self._file.now(), response.status, response.reason
        left_out = http.HOP_BY_HOP
        if response.length is None or response.status in (
            204,
            304,
        ):  # it would break the client's connection
            left_out = left_out | {"content-length"}
        given = [each for each in response.getheaders() if each[0].lower() not in left_out]
        self.headers = recordings.sendable(given)
        return response

    def __iter__(self) -> Iterator[bytes]:
        yield b""  # status line and headers leave now
        try:
            for piece in http.pieces_of(self._response, self._upstream.timeout_s):
                self.take("answer", piece)
                self.bytes_sent += len(piece)
                yield piece
            self._has_ended = True
            self._ended(self)
        except ConnectionResetError as error:
            self._is_broken = self._has_ended = True
            if self.gone:
                return
            if isinstance(error.__cause__, TimeoutError):
                self.give_up(f"its answer did not go on within {self._upstream.timeout_s:g} s")
                if recordings.header_of(self.headers, "content-type").startswith(
                    "text/event-stream"
                ):
                    yield error_event(timed_out("The target's answer did not go on in time."))
            break_off(self._client)
        finally:
            self._end_s = self._file.now()

    def take(self, of: str, piece: bytes) -> None:
        """Keeps a piece of the "request" or of the "answer"."""
        size, answer, most = (
            len(piece) + PIECE_BYTES,
            self._pieces["answer"],
            self._upstream.most_bytes,
        )
        self._sizes[of] += len(piece)
        if self._sizes[of] > most:
            self.give_up(f"its {of} is larger than {most >> 20} MiB")
        elif len(answer) == MOST_PIECES:
            self.give_up(f"its answer has more than {MOST_PIECES} pieces")
        elif size > self._file.free_bytes:
            self.give_up("too much is under way")
        if not self.excuse:
            self._held += size
            self._file.free_bytes -= size
            self._pieces[of].append((self._file.now(), piece))

    def give_up(self, why: str) -> None:
        self.excuse = self.excuse or why
        self.release()

    def release(self) -> None:
        self._file.free_bytes += self._held
        self._held = 0
        self._pieces.clear()

    def _leave(self) -> None:
        self.gone = True
        self.give_up("the client left")

    def close(self) -> None:
        self._ends.close()

    def _keep(self) -> None:
        if not self._has_ended:
            self._leave()
        self._file.put(self)
        self.over.set()

    def answer(self) -> recordings.RecordedAnswer:
        """Returns the answer without its moments, as it came: secrets are not masked."""
        pieces = self._pieces["answer"]
        chunks = [recordings.RecordedChunk(0.0, recordings.data_of(piece)) for _, piece in pieces]
        return recordings.RecordedAnswer(self.status, self.headers, 0.0, chunks, 0.0)

    def line(self, began_s: float) -> bytes:
        """Encodes the exchange as a line of a file that began at `began_s`, in monotonic seconds.

        recordings.HiddenSecrets: a body cannot be masked.
        """
        asked, came = self._pieces["request"], self._pieces["answer"]
        asked_as = self._asked_headers.get("content-encoding", "")
        came_as = recordings.header_of(self.headers, "content-encoding")
        [body] = recordings.masked_pieces([b"".join(piece for _, piece in asked)], asked_as)
        masked = recordings.masked_pieces([piece for _, piece in came], came_as)
        chunks = [
            recordings.RecordedChunk(round(at_s - self._asked_s, 6), recordings.data_of(piece))
            for (at_s, _), piece in zip(came, masked, strict=True)
        ]
        headers, length = mask_headers(self.headers), sum(map(len, masked))
        if (
            length and not self._is_broken
        ):  # masking may have changed the length; a HEAD request has no body
            headers = [
                (name, str(length) if name.lower() == "content-length" else value)
                for name, value in headers
            ]
        target, asked_headers = (
            mask_query(self.target),
            mask_headers(list(self._asked_headers.items())),
        )
        request = recordings.RecordedRequest(
            self.method, target, asked_headers, recordings.data_of(body)
        )
        head_s, end_s = (
            round(self._head_s - self._asked_s, 6),
            round(self._end_s - self._asked_s, 6),
        )
        answer = recordings.RecordedAnswer(
            self.status, headers, head_s, chunks, end_s, self._is_broken
        )
        at_s = round(self._at_s - began_s, 6)
        return recordings.line_of(recordings.Exchange(at_s, request, answer))
