"""What passes the proxy passes unchanged and at once; what is kept of it is whole, and has no secrets."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from http.client import IncompleteRead
from pathlib import Path
from typing import Any

import gevent
import pytest
from gevent.event import Event
from gevent.pywsgi import WSGIServer

from app.serving.http.client import JSON, Connection, Target
from app.serving.recording.exchange import Exchange, RecordingError, bytes_of
from app.serving.recording.proxy import PIECE_BYTES, RecordingFile, RecordingHandler, RecordingProxy
from tests.fleet import stubs
from tests.recording.recordings import exchanges_of

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n"


class Recorder:
    """A proxy in this process, its file, and the lines that it told."""

    def __init__(self, path: Path, address: str, **given: Any) -> None:
        self.told: list[str] = []
        self.port = 0
        most_held = given.pop("most_held_bytes", 1 << 20)
        self._path = path
        self._file = RecordingFile(path, address, most_held_bytes=most_held, warn=self.told.append)
        self._proxy = RecordingProxy(Target.of(f"http://{address}"), self._file, **given)

    @contextmanager
    def running(self) -> Iterator[str]:
        """Its address."""
        server = WSGIServer(
            ("127.0.0.1", 0), self._proxy, handler_class=RecordingHandler, log=None, error_log=None
        )
        server.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.stop(timeout=1)
            self._file.close()

    def kept(self, count: int) -> list[Exchange]:
        """The exchanges in the file, as soon as so many have been kept or not kept."""
        stubs.eventually(lambda: self._file.kept + self._file.left_out >= count)
        self._file.close()
        return exchanges_of(self._path)


@contextmanager
def recording(path: Path, address: str, **given: Any) -> Iterator[tuple[str, Recorder]]:
    """The address of a recorder before the server at `address`, and the recorder."""
    recorder = Recorder(path / "recording", address, **given)
    with recorder.running() as proxy:
        yield proxy, recorder


def body_of(exchange: Exchange) -> bytes:
    return b"".join(bytes_of(chunk.data) for chunk in exchange.answer.chunks)


def test_an_exchange_passes_unchanged_and_is_kept_without_its_secrets(tmp_path: Path) -> None:
    pod = stubs.Pod('{"api_key": "K2", "text": "ö"}')
    headers = {"Authorization": "Bearer K1", "X-Request-Id": "7", "Accept-Encoding": "gzip"}
    asked = {"prompt": "ü", "hf_token": "K3"}
    with stubs.serving(pod) as address, recording(tmp_path, address) as (proxy, recorder):
        with stubs.posted(proxy, asked, "/v1/%63hat?beta=1&api_key=K4", **headers) as response:
            assert (response.status, response.read()) == (201, pod.name.encode())
            assert response.getheader("x-pod") == pod.name
        [kept] = recorder.kept(1)
    assert pod.asked == [("POST", "/v1/chat", json.dumps(asked).encode())]
    assert pod.headers[0]["HTTP_AUTHORIZATION"] == "Bearer K1"
    assert pod.headers[0]["HTTP_ACCEPT_ENCODING"] == "identity"
    text = (tmp_path / "recording").read_text()
    assert not [secret for secret in ("K1", "K2", "K3", "K4") if secret in text.replace("K2", "", 1)]
    assert kept.request.target == "/v1/%63hat?beta=1&api_key=***"
    assert json.loads(bytes_of(kept.request.body)) == {"prompt": "ü", "hf_token": "***"}
    assert json.loads(body_of(kept)) == {"api_key": "***", "text": "ö"}
    assert (kept.answer.status, kept.answer.is_broken) == (201, False)
    assert recorder.told == []


def test_every_chunk_passes_at_once_and_is_kept_with_its_moment(tmp_path: Path) -> None:
    go_on = Event()

    def pod(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/event-stream")])
        yield b"data: 1\n\n"
        go_on.wait()
        yield "data: ü".encode()[:-1]
        gevent.sleep(0.01)
        yield "ü\n\n".encode()[1:]

    with stubs.serving(pod) as address, recording(tmp_path, address) as (proxy, recorder):
        with stubs.posted(proxy, {}) as response:
            assert response.read1() == b"data: 1\n\n"
            gevent.sleep(0.05)
            go_on.set()
            assert response.read() == "data: ü\n\n".encode()
        [kept] = recorder.kept(1)
    pieces = [bytes_of(chunk.data) for chunk in kept.answer.chunks]
    assert pieces == [b"data: 1\n\n", "data: ü".encode()[:-1], "ü\n\n".encode()[1:]]
    moments = [kept.answer.head_s, *(chunk.at_s for chunk in kept.answer.chunks), kept.answer.end_s]
    assert moments == sorted(moments)
    assert moments[2] - moments[1] >= 0.05


@pytest.mark.parametrize("head", [b"", CHUNKED, CHUNKED + b"5\r\nhello\r\n", COUNTED + b"some"])
def test_a_client_that_leaves_ends_the_request_and_its_exchange_is_not_kept(
    tmp_path: Path, head: bytes
) -> None:
    talker = stubs.Talker(head)
    with stubs.talking(talker) as address, recording(tmp_path, address) as (proxy, recorder):
        connection = Connection(proxy, stubs.PATIENCE_S)
        connection.request("POST", "/v1/completions", b"{}", JSON)
        gevent.sleep(0.02)
        connection.close()
        assert talker.client_left.wait(stubs.PATIENCE_S)
        assert recorder.kept(1) == []
    assert recorder.told == ["not kept: POST /v1/completions: the client left"]


@pytest.mark.parametrize("head", [CHUNKED + b"5\r\nhello\r\n", COUNTED + b"hello", CHUNKED + b"9\r\nhello"])
def test_an_answer_that_breaks_off_breaks_off_for_the_client_and_is_kept_as_such(
    tmp_path: Path, head: bytes
) -> None:
    with (
        stubs.talking(stubs.Talker(head, hang_up=True)) as address,
        recording(tmp_path, address) as (proxy, recorder),
    ):
        with stubs.posted(proxy, {}) as response, pytest.raises(IncompleteRead):
            response.read()
        [kept] = recorder.kept(1)
    assert kept.answer.is_broken
    assert body_of(kept) in (b"hello", b"")


def answering(body: bytes, *headers: tuple[str, str]) -> Callable[..., Iterable[bytes]]:
    """A server that always says this, and reads what it is sent."""

    def pod(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        while environ["wsgi.input"].read(1 << 16):
            pass
        start_response("200 OK", [*headers])
        return [body]

    return pod


@pytest.mark.parametrize(("asked", "answered"), [(3 << 20, 10), (10, 3 << 20)])
def test_a_huge_body_passes_and_is_not_kept(tmp_path: Path, asked: int, answered: int) -> None:
    pod = answering(bytes(answered))
    with (
        stubs.serving(pod) as address,
        recording(tmp_path, address, most_bytes=2 << 20, most_held_bytes=32 << 20) as (proxy, recorder),
    ):
        with stubs.posted(proxy, bytes(asked)) as response:
            assert len(response.read()) == answered
        assert recorder.kept(1) == []
    which = "request" if asked > answered else "answer"
    assert recorder.told == [f"not kept: POST /v1/completions: its {which} is larger than 2 MiB"]


def test_what_all_exchanges_hold_is_bounded_and_given_back(tmp_path: Path) -> None:
    pod = answering(bytes(1000))
    room = 2 * PIECE_BYTES + 1000 + 2
    with (
        stubs.serving(pod) as address,
        recording(tmp_path, address, most_held_bytes=room) as (proxy, recorder),
    ):
        for number in range(3):
            with stubs.posted(proxy, {}) as response:
                response.read()
            stubs.eventually(lambda count=number: recorder._file.kept > count)
        with stubs.posted(proxy, {"a": "b"}) as response:
            assert len(response.read()) == 1000
        assert len(recorder.kept(4)) == 3
    assert recorder.told == ["not kept: POST /v1/completions: too much is under way"]


def test_a_compressed_answer_with_a_secret_is_not_kept(tmp_path: Path) -> None:
    packed = gzip.compress(b'{"api_key": "x"}')
    with (
        stubs.serving(answering(packed, ("Content-Encoding", "gzip"))) as address,
        recording(tmp_path, address) as (proxy, recorder),
    ):
        with stubs.posted(proxy, {}) as response:
            assert response.read() == packed
        assert recorder.kept(1) == []
    assert recorder.told == ["not kept: POST /v1/completions: there are secrets in its gzip body"]


def test_a_request_in_chunks_passes_in_chunks(tmp_path: Path) -> None:
    pod = stubs.Pod("one")
    with stubs.serving(pod) as address, recording(tmp_path, address) as (proxy, recorder):
        with closing(Connection(proxy, stubs.PATIENCE_S)) as connection:
            connection.request("POST", "/v1/completions", iter([b'{"a"', b": 1}"]), JSON, encode_chunked=True)
            assert connection.getresponse().read() == b"one"
        [kept] = recorder.kept(1)
    assert pod.asked == [("POST", "/v1/completions", b'{"a": 1}')]
    assert pod.headers[0]["HTTP_TRANSFER_ENCODING"] == "chunked"
    assert kept.request.body == '{"a": 1}'


def test_a_file_that_is_there_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("mine")
    with pytest.raises(RecordingError, match="r: is there already"):
        RecordingFile(tmp_path / "r", "")
    with pytest.raises(RecordingError, match="cannot be written: No such file or directory"):
        RecordingFile(tmp_path / "none" / "r", "")
    assert (tmp_path / "r").read_text() == "mine"
