"""The proxy forwards exchanges unchanged and at once, and records them whole."""

import errno
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import gevent
import pytest
from gevent.event import Event
from urllib3.exceptions import HTTPError

from app.extensions.recording.exchange import Exchange, bytes_of
from app.extensions.recording.proxy import RecordingProxy
from app.extensions.recording.recorder import PIECE_OVERHEAD_BYTES, Upstream
from app.extensions.recording.targets import targets_by_model
from app.extensions.recording.writer import RecordingFile
from app.shared.http_client import JSON, HttpConnection, Target
from app.shared.http_client import exchange as send
from tests import stubs
from tests.extensions.recording.recordings import exchanges_of

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)


OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"


def saying(answer: bytes) -> Any:
    """The address of a server that says just this, and hangs up."""
    return stubs.talking(stubs.Talker(answer, hang_up=True))


class Recorder:
    """A proxy in this process, its file, and the lines that it told."""

    def __init__(self, path: Path, address: str, **settings: Any) -> None:
        self.warnings: list[str] = []
        self.port = 0
        most_held = settings.pop("max_held_bytes", 1 << 20)
        self._path = path
        self._file = RecordingFile(
            path, address, max_held_bytes=most_held, warn=self.warnings.append
        )
        targets = settings.pop("targets", {"": Target.from_url(f"http://{address}")})
        hosts = settings.pop("hosts", ())
        self._proxy = RecordingProxy(Upstream(targets, self._file, **settings), hosts)

    @contextmanager
    def running(self) -> Iterator[str]:
        with stubs.serving(self._proxy) as address:
            yield address
        self._file.close()

    def wait_for_exchanges(self, count: int) -> list[Exchange]:
        """The exchanges in the file, as soon as so many have been kept or not kept."""
        stubs.eventually(lambda: self._file.written + self._file.dropped >= count)
        self._file.close()
        return exchanges_of(self._path)


@contextmanager
def recording(path: Path, address: str, **settings: Any) -> Iterator[tuple[str, Recorder]]:
    """The address of a recorder before the server at `address`, and the recorder."""
    recorder = Recorder(path / "recording", address, **settings)
    with recorder.running() as proxy:
        yield proxy, recorder


def body_of(exchange: Exchange) -> bytes:
    return b"".join(bytes_of(chunk.data) for chunk in exchange.answer.chunks)


def test_exchange_is_forwarded_unchanged_and_recorded_without_secrets(tmp_path: Path) -> None:
    pod = stubs.Pod('{"api_key": "K2", "text": "ö"}')
    headers = {"Authorization": "Bearer K1", "X-Request-Id": "7", "Accept-Encoding": "gzip"}
    body = {"prompt": "ü", "hf_token": "K3"}
    with stubs.serving(pod) as address, recording(tmp_path, address) as (proxy, recorder):
        with stubs.posted(proxy, body, "/v1/%63hat?beta=1&api_key=K4", **headers) as response:
            assert (response.status, response.read()) == (201, pod.name.encode())
            assert response.getheader("x-pod") == pod.name
        [recorded] = recorder.wait_for_exchanges(1)
    assert pod.asked == [("POST", "/v1/chat", json.dumps(body).encode())]
    assert pod.headers[0]["HTTP_AUTHORIZATION"] == "Bearer K1"
    assert pod.headers[0]["HTTP_ACCEPT_ENCODING"] == "identity"
    text = (tmp_path / "recording").read_text()
    assert not [
        secret for secret in ("K1", "K2", "K3", "K4") if secret in text.replace("K2", "", 1)
    ]
    assert recorded.request.target == "/v1/%63hat?beta=1&api_key=***"
    assert json.loads(bytes_of(recorded.request.body)) == {"prompt": "ü", "hf_token": "***"}
    assert json.loads(body_of(recorded)) == {"api_key": "***", "text": "ö"}
    assert (recorded.answer.status, recorded.answer.is_broken) == (201, False)
    assert recorder.warnings == []


def test_chunks_are_forwarded_at_once_and_recorded_with_their_times(tmp_path: Path) -> None:
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
        [recorded] = recorder.wait_for_exchanges(1)
    pieces = [bytes_of(chunk.data) for chunk in recorded.answer.chunks]
    assert pieces == [b"data: 1\n\n", "data: ü".encode()[:-1], "ü\n\n".encode()[1:]]
    moments = [
        recorded.answer.head_s,
        *(chunk.at_s for chunk in recorded.answer.chunks),
        recorded.answer.end_s,
    ]
    assert moments == sorted(moments)
    assert moments[2] - moments[1] >= 0.05


@pytest.mark.parametrize("head", [b"", CHUNKED + b"5\r\nhello\r\n"])
def test_exchange_of_a_disconnected_client_is_not_recorded(tmp_path: Path, head: bytes) -> None:
    talker = stubs.Talker(head)
    with stubs.talking(talker) as address, recording(tmp_path, address) as (proxy, recorder):
        connection = HttpConnection(proxy, stubs.PATIENCE_S)
        connection.request("POST", "/v1/completions", b"{}", JSON)
        gevent.sleep(0.02)
        connection.close()
        assert talker.client_left.wait(stubs.PATIENCE_S)
        assert recorder.wait_for_exchanges(1) == []
    assert recorder.warnings == ["not kept: POST /v1/completions: the client left"]


def answering(body: bytes, *headers: tuple[str, str]) -> Callable[..., Iterable[bytes]]:
    """A server that always says this, and reads what it is sent."""

    def pod(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        while environ["wsgi.input"].read(1 << 16):
            pass
        start_response("200 OK", [*headers])
        return [body]

    return pod


@pytest.mark.parametrize(
    ("size", "answer", "why"),
    [
        (3 << 20, OK + b"Content-Length: 2\r\n\r\nhi", "its request is larger than 2 MiB"),
        (10, OK + b"\r\n" + bytes(3 << 20), "its answer is larger than 2 MiB"),
        (10, CHUNKED + b"1\r\nh\r\n" * 501 + b"0\r\n\r\n", "its answer has more than 500 pieces"),
        (
            10,
            OK + b"Content-Encoding: gzip\r\n\r\nhi",
            "secrets in the gzip-encoded body could not be masked",
        ),
    ],
    ids=["request", "answer", "pieces", "coding"],
)
def test_huge_or_compressed_body_is_forwarded_but_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, answer: bytes, why: str
) -> None:
    monkeypatch.setattr("app.extensions.recording.recorder.MAX_PIECES", 500)
    with (
        saying(answer) as address,
        recording(tmp_path, address, max_bytes=2 << 20, max_held_bytes=32 << 20) as (
            proxy,
            recorder,
        ),
    ):
        with stubs.posted(proxy, bytes(size)) as response:
            assert response.read().strip(b"h\0") in (b"", b"i")
        assert recorder.wait_for_exchanges(1) == []
    assert recorder.warnings == [f"not kept: POST /v1/completions: {why}"]


def test_memory_of_concurrent_exchanges_is_limited(tmp_path: Path) -> None:
    pod = answering(bytes(1000))
    room = 2 * PIECE_OVERHEAD_BYTES + 1000 + 2
    with (
        stubs.serving(pod) as address,
        recording(tmp_path, address, max_held_bytes=room) as (proxy, recorder),
    ):
        for number in range(3):
            with stubs.posted(proxy, {}) as response:
                response.read()
            stubs.eventually(lambda count=number: recorder._file.written > count)
        with stubs.posted(proxy, {"a": "b"}) as response:
            assert len(response.read()) == 1000
        assert len(recorder.wait_for_exchanges(4)) == 3
    assert recorder.warnings == ["not kept: POST /v1/completions: too much is under way"]


def test_chunked_request_is_forwarded_in_chunks(tmp_path: Path) -> None:
    pod = stubs.Pod("one")
    with stubs.serving(pod) as address, recording(tmp_path, address) as (proxy, recorder):
        with closing(HttpConnection(proxy, stubs.PATIENCE_S)) as connection:
            connection.request("POST", "/v1/completions", iter([b'{"a"', b": 1}"]), JSON)
            assert connection.getresponse().read() == b"one"
        [recorded] = recorder.wait_for_exchanges(1)
    assert pod.asked == [("POST", "/v1/completions", b'{"a": 1}')]
    assert pod.headers[0]["HTTP_TRANSFER_ENCODING"] == "chunked"
    assert recorded.request.body == '{"a": 1}'


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello"),
        (OK + b"Content-Length: 5\r\n\r\nhello and more", b"hello"),
        (OK + b"Content-Length: 5\r\ncontent-length: 5\r\n\r\nhello and more", b"hello"),
        (OK + b"Content-Length: 5, 5 ,5\r\n\r\nhello and more", b"hello"),
        (CHUNKED[:-2] + b"Content-Length: 3\r\n\r\n5\r\nhello\r\n0\r\n\r\n", b"hello"),
        (CHUNKED + b'5;a="b"\r\nhello\r\n0\r\nX-Trailer: 1\r\n\r\n', b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello", b"hello"),
        (
            OK + b"X: a\r\n b\r\nX Y: 1\r\n\x01: 2\r\nnone\r\nContent-Length: 5\r\n\r\nhello",
            b"hello",
        ),
        (OK + b"Connection: close, x-mine\r\nX-Mine: 1\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b""),
    ],
)
def test_response_with_irregular_chunks_is_forwarded_and_recorded(
    tmp_path: Path, answer: bytes, body: bytes
) -> None:
    with saying(answer) as address, recording(tmp_path, address) as (proxy, recorder):
        with stubs.posted(proxy, {"a": 1}) as response:
            assert response.read() == body
            status = response.status
        [recorded] = recorder.wait_for_exchanges(1)
    assert (recorded.answer.status, recorded.answer.is_broken) == (status, False)
    assert body_of(recorded) == body
    assert json.loads(bytes_of(recorded.request.body)) == {"a": 1}


@pytest.mark.parametrize(
    "answer",
    [
        b"\x00\xff garbage\r\n\r\n",
        b"",
        OK + b"X: " + b"x" * 100_000 + b"\r\n\r\n",
        OK + b"X: 1\r\n" * 200 + b"\r\n",
        OK + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello ",
        OK + b"Content-Length: 5, 6\r\n\r\nhello ",
        OK + b"Content-Length: 1_0\r\n\r\nhellohello",
        OK + b"Content-Length: -5\r\n\r\nhello",
        OK + b"Content-Length: \r\n\r\nhello",
        OK + b"Content-Length: %d\r\n\r\nhello" % 10**30,
    ],
)
def test_malformed_response_of_the_target_returns_502(tmp_path: Path, answer: bytes) -> None:
    with saying(answer) as address, recording(tmp_path, address) as (proxy, recorder):
        with stubs.posted(proxy, {}) as response:
            assert response.status == 502
            assert address in json.load(response)["error"]["message"]
        assert recorder.wait_for_exchanges(1) == []
    assert len(recorder.warnings) == 1


@pytest.mark.parametrize(
    "answer",
    [
        CHUNKED + b"zz\r\nhello\r\n",
        CHUNKED + b"9\r\nhello",
        OK + b"Content-Length: 100\r\n\r\nhello",
    ],
)
def test_broken_response_of_the_target_is_recorded_as_broken(tmp_path: Path, answer: bytes) -> None:
    with saying(answer) as address, recording(tmp_path, address) as (proxy, recorder):
        with stubs.posted(proxy, {}) as response, pytest.raises(HTTPError):
            response.read()
        [recorded] = recorder.wait_for_exchanges(1)
    assert recorded.answer.is_broken and body_of(recorded) in (b"hello", b"")


def test_request_is_forwarded_to_the_target_of_the_model(
    tmp_path: Path,
) -> None:
    first = stubs.Pod("first")
    second = stubs.Pod("second")
    with stubs.serving(first) as first_port, stubs.serving(second) as two:
        targets = targets_by_model([f"a/b:c=http://K%21@{first_port}/v1", f"http://{two}"])
        with recording(tmp_path, first_port, targets=targets) as (proxy, recorder):
            bodies = [{"model": "a/b:c"}, {"model": "other"}, {"prompt": "Hi"}]
            names = []
            for body in bodies:
                with stubs.posted(proxy, body, Authorization="Bearer K2") as response:
                    names.append(response.read().decode())
            assert names == ["first", "second", "second"]
            recorded = recorder.wait_for_exchanges(3)
    assert sorted(str(recorded_exchange.request.body) for recorded_exchange in recorded) == sorted(
        json.dumps(body) for body in bodies
    )
    assert [pod.headers[0]["HTTP_AUTHORIZATION"] for pod in (first, second)] == [
        "Bearer K!",
        "Bearer K2",
    ]
    assert first.asked[0][2] == json.dumps(bodies[0]).encode()


class FullDisk:
    """A file that takes some bytes of a line, and then no more, once for each of `failures`."""

    def __init__(self, file: BinaryIO, failures: list[str]) -> None:
        self._file = file
        self._failures = failures

    def write(self, line: bytes) -> int:
        failure = self._failures.pop() if self._failures else ""
        if failure == "half":
            return self._file.write(line[: len(line) // 2])
        if failure:
            self._file.write(line[:10])
            raise OSError(errno.ENOSPC, failure)
        return self._file.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_full_disk_drops_exchanges_without_damaging_other_lines(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with (
        stubs.serving(stubs.Pod("one")) as address,
        recording(tmp_path, address) as (proxy, recorder),
    ):
        shared = recorder._file._file
        shared._file = FullDisk(shared._file, ["No space left on device", "half"])  # type: ignore[assignment]
        for number in range(4):
            with stubs.posted(proxy, {"number": number}) as response:
                assert response.read() == b"one"
            stubs.eventually(lambda n=number: recorder._file.written + recorder._file.dropped > n)
        recorded = recorder.wait_for_exchanges(4)
    assert [json.loads(bytes_of(exchange.request.body))["number"] for exchange in recorded] == [
        2,
        3,
    ]
    why = ("there is no space left for the exchange", "No space left on device")
    assert recorder.warnings == [f"not kept: POST /v1/completions: {reason}" for reason in why]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"origin": "http://127.0.0.1"}, 403),
        ({"origin": "https://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none"}, 200),
        ({"host": "evil.example"}, 403),
        ({"host": "localhost:8001"}, 200),
        ({"host": "recorder.internal"}, 200),
        ({"host": "proxy.example"}, 200),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_requests_of_foreign_pages_and_for_foreign_hosts_are_refused(
    tmp_path: Path, headers: dict[str, str], status: int, method: str
) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
    with saying(answer) as address:
        recorder = Recorder(tmp_path / "tape", address, hosts=("proxy.example",))
        with recorder.running() as proxy:
            answered, _ = send(proxy, method, "/v1/models", headers=headers)
            assert answered == status
            if status == 403:
                assert recorder._file.written + recorder._file.dropped == 0
