"""The recording of a live server, and the errors of a failed recording."""

import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from time import perf_counter

import gevent
import pytest
from gevent.event import Event
from gevent.server import StreamServer

from config import ConfigError
from tests.callbacks import ignore
from workbench.runs import record
from workbench.runs.record import read_target
from workbench.runs.recording_client import (
    PlannedRequest,
    RecordError,
    RecordingClient,
)

HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
USAGE = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
SHORT = {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 1}}
TWO = [PlannedRequest(0.0, b"{}", 2), PlannedRequest(0.05, b"{}", 2)]


def event(document: object) -> bytes:
    text = document if isinstance(document, bytes) else json.dumps(document).encode()
    data = b"data: " + text + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


ANSWER = [
    HEAD,
    event({"choices": [{"text": "a"}]}),
    event({"choices": [{"text": "b"}]}),
    event(USAGE) + event(b"[DONE]") + b"0\r\n\r\n",
]


@contextmanager
def answering(pieces: Sequence[bytes]) -> Iterator[tuple[str, list[float]]]:
    """A server that sends `pieces` for one request a connection; its URL, and when it sent each
    piece.
    """
    sent_s: list[float] = []

    def serve(connection: socket.socket, address: object) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError):  # the client goes when an answer is wrong
            assert b"Connection: close" in connection.recv(1 << 20)
            for piece in pieces:
                sent_s.append(perf_counter())
                connection.sendall(piece)
                gevent.sleep(0.01)

    server = StreamServer(("127.0.0.1", 0), serve)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sent_s
    finally:
        server.stop(1)


def client(url: str, now: Callable[[], float] = perf_counter) -> RecordingClient:
    return RecordingClient(read_target(url), {}, in_flight=1, now=now, on_send=ignore)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_recorded_request_has_the_times_of_its_first_and_last_token(size: int) -> None:
    whole = b"".join(ANSWER)
    shredded = [whole[place : place + size] for place in range(0, len(whole), size)]
    pieces = ANSWER if size == 1000 else shredded[:20] + [b"".join(shredded[20:])]
    with answering(pieces) as (url, sent_s):
        clock_reads: list[float] = []
        """The first one is the start of the client."""

        def read_clock() -> float:
            clock_reads.append(perf_counter())
            return clock_reads[-1]

        first, second = client(url, read_clock).run(TWO)
    assert (first.number, second.number, first.input_tokens, first.output_tokens) == (0, 1, 7, 2)
    assert second.arrival_s == 0.05 <= second.send_s
    for measured in (first, second):
        assert (
            measured.send_s < measured.first_s <= measured.last_s < perf_counter() - clock_reads[0]
        )
    if size == 1000:
        stamps = [at_s - clock_reads[0] for at_s in sent_s]
        assert (
            stamps[1] <= first.first_s
            and stamps[2] <= first.last_s
            and first.first_s < first.last_s
        )
        assert first.last_s < second.first_s


def test_bytes_are_never_received_before_the_server_sent_them() -> None:
    """A busy machine pauses the client before it reads bytes that have come; others follow."""
    loop = gevent.get_hub().loop
    after_poll = loop.check(ref=False, priority=loop.MAXPRI - 1)
    later_s: list[float] = []
    is_sent = Event()

    def serve(connection: socket.socket, address: object) -> None:
        connection.recv(1 << 20)

        def send_rest() -> None:
            after_poll.stop()
            later_s.append(perf_counter())
            connection.sendall(b"".join(ANSWER[2:]))
            is_sent.set()

        connection.sendall(b"".join(ANSWER[:2]))
        after_poll.start(send_rest)  # the poll has found the bytes above
        is_sent.wait()

    server = StreamServer(("127.0.0.1", 0), serve)
    server.start()
    try:
        recording = client(f"http://127.0.0.1:{server.server_port}")
        [recorded] = recording.run(TWO[:1])
    finally:
        server.stop(1)
        after_poll.close()
    assert recording.start_s + recorded.last_s >= later_s[0]


@pytest.mark.parametrize(
    ("pieces", "rule"),
    [
        (
            [b"HTTP/1.1 503 Busy\r\nContent-Length: 6\r\n\r\nfull\n!"],
            "request 1: HTTP/1.1 503 Busy: full !",
        ),
        (ANSWER[:2] + [b"0\r\n\r\n"], "request 1: the stream ended early"),
        (ANSWER[:2], "ended early"),
        (
            ANSWER[:2] + [event({"error": {"message": "gone"}}) + b"0\r\n\r\n"],
            "the stream contains an error",
        ),
        (ANSWER[:2] + [event(b"{") + b"0\r\n\r\n"], "invalid event in the stream"),
        (
            [*ANSWER[:2], event(SHORT) + event(b"[DONE]") + b"0\r\n\r\n"],
            "1 output tokens, not the 2 that",
        ),
    ],
)
def test_invalid_server_response_ends_the_recording_with_a_one_line_error(
    pieces: list[bytes], rule: str
) -> None:
    with answering(pieces) as (url, _), pytest.raises(RecordError) as error:
        client(url).run(TWO)
    assert rule in str(error.value) and "\n" not in str(error.value)


def test_record_command_removes_v1_from_the_end_of_its_target_url() -> None:
    assert read_target("http://there/vllm/v1/").prefix == "/vllm"
    for url in ("localhost:8000", "https://there", "http://", "http://there:port"):
        with pytest.raises(ConfigError, match="^target "):
            read_target(url)


@pytest.mark.parametrize(
    "words, rule",
    [
        (["--rate", "1"], "127.0.0.1:1: "),
        ([], "either --trace or --rate is required"),
        (["--rate", "0"], "must be a number greater than 0"),
        (["--rate", "1", "--input-tokens", "many"], "--input-tokens: 'many'"),
        (["--trace", "nothing.csv"], "nothing.csv"),
    ],
)
def test_invalid_record_flags_are_rejected_with_a_one_line_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], rule: str
) -> None:
    out = tmp_path / "run.csv"
    status = 2 if "must be a number" in rule or "many" in rule else 1
    assert record.run(["--target", "http://127.0.0.1:1", "--out", str(out), *words]) == status
    message = capsys.readouterr().err
    assert rule in message and message.count("\n") == 1 and not out.exists()
