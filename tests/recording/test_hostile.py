"""Servers that answer strangely, recorded and replayed: what came passes, or the client is told why not."""

from __future__ import annotations

import errno
import gzip
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from gevent.server import StreamServer

from app.serving.recording.exchange import bytes_of
from tests.fleet import stubs
from tests.recording.test_proxy import body_of, recording

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
PACKED = gzip.compress(b"hello", mtime=0)


@contextmanager
def saying(answer: bytes) -> Iterator[str]:
    """The address of a server that says just this, and hangs up."""

    def talk(sock: socket.socket, address: object) -> None:
        stubs.read_request(sock)
        sock.sendall(answer)

    server = StreamServer(("127.0.0.1", 0), talk)
    server.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.stop(timeout=1)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\nhello", b"hello"),
        (b"HTTP/1.1 200\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (OK + b"Content-Length: x\r\n\r\nhello", b"hello"),
        (OK + b"Content-Length: 5\r\n\r\nhello and more", b"hello"),
        (CHUNKED + b'5;a="b"\r\nhello\r\n0\r\nX-Trailer: 1\r\n\r\n', b"hello"),
        (CHUNKED + b"1\r\nh\r\n4\r\nello\r\n0\r\n\r\n", b"hello"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 5\r\n\r\nhello", b"hello"),
        (OK + b"X: a\r\n b\r\nX Y: 1\r\n\x01: 2\r\nnone\r\nContent-Length: 5\r\n\r\nhello", b"hello"),
        (OK + "X: ö€\x01\r\n".encode() + b"Content-Length: 5\r\n\r\nhello", b"hello"),
        (OK + b"Connection: close, x-mine\r\nX-Mine: 1\r\nContent-Length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n", b""),
        (
            OK + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"hello", mtime=0),
            gzip.compress(b"hello", mtime=0),
        ),
    ],
)
def test_a_strange_answer_passes_and_is_kept(tmp_path: Path, answer: bytes, body: bytes) -> None:
    with saying(answer) as address, recording(tmp_path, address) as (proxy, recorder):
        with stubs.posted(proxy, {"a": 1}) as response:
            assert response.read()[10:] == body[10:], "gzip has a moment in its first bytes"
            status = response.status
        [kept] = recorder.kept(1)
    assert (kept.answer.status, kept.answer.is_broken) == (status, False)
    assert body_of(kept)[10:] == body[10:]
    assert json.loads(bytes_of(kept.request.body)) == {"a": 1}


@pytest.mark.parametrize(
    "answer",
    [
        *(
            b"\x00\xff garbage\r\n\r\n",
            b"",
            b"HTTP/1.1 2x0 OK\r\n\r\n",
            b"HTTP/9.9 200 OK\r\n\r\n",
            b"\r\n" * 9,
        ),
        b"HTTP/1.1 200 " + b"x" * 100_000 + b"\r\n\r\n",
        OK + b"X: " + b"x" * 100_000 + b"\r\n\r\n",
        OK + b"X: 1\r\n" * 200 + b"\r\n",
    ],
)
def test_an_answer_that_is_none_is_a_502_and_not_kept(tmp_path: Path, answer: bytes) -> None:
    with saying(answer) as address, recording(tmp_path, address) as (proxy, recorder):
        with stubs.posted(proxy, {}) as response:
            assert response.status == 502
            assert address in json.load(response)["error"]["message"]
        assert recorder.kept(1) == []
    assert len(recorder.told) == 1
    (tmp_path / "recording").unlink()
    with recording(tmp_path, stubs.unused_address()) as (proxy, recorder):
        with stubs.posted(proxy, {}) as response:
            assert response.status == 502
        assert recorder.kept(1) == []


@pytest.mark.parametrize(
    "answer",
    [CHUNKED + b"zz\r\nhello\r\n", CHUNKED + b"-5\r\nhello", CHUNKED + b"5\r\nhello\r\nfffffffffffff"],
)
def test_a_body_that_becomes_garbage_breaks_off_and_is_kept_as_such(tmp_path: Path, answer: bytes) -> None:
    with saying(answer) as address, recording(tmp_path, address) as (proxy, recorder):
        with stubs.posted(proxy, {}) as response, pytest.raises((HTTPException, OSError)):
            response.read()
        [kept] = recorder.kept(1)
    assert kept.answer.is_broken


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


def test_a_disk_that_is_full_for_a_while_spoils_no_other_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with stubs.serving(stubs.Pod("one")) as address, recording(tmp_path, address) as (proxy, recorder):
        recorder._file._file = FullDisk(recorder._file._file, ["No space left on device", "half"])  # type: ignore[assignment]
        for number in range(4):
            with stubs.posted(proxy, {"number": number}) as response:
                assert response.read() == b"one"
            stubs.eventually(lambda n=number: recorder._file.kept + recorder._file.left_out > n)
        kept = recorder.kept(4)
    assert [json.loads(bytes_of(one.request.body))["number"] for one in kept] == [2, 3]
    why = ("there is no room for it", "No space left on device")
    assert recorder.told == [f"not kept: POST /v1/completions: {each}" for each in why]
    assert capfd.readouterr().err == ""


def test_an_answer_in_very_many_pieces_passes_and_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.serving.recording.proxy.MOST_PIECES", 3)
    answers = [CHUNKED + b"1\r\nh\r\n" * count + b"0\r\n\r\n" for count in (3, 4)]
    for count, answer in zip((3, 4), answers, strict=True):
        folder = tmp_path / str(count)
        folder.mkdir()
        with saying(answer) as address, recording(folder, address) as (proxy, recorder):
            with stubs.posted(proxy, {}) as response:
                assert response.read() == b"h" * count
            assert len(recorder.kept(1)) == (count == 3)
    assert recorder.told == ["not kept: POST /v1/completions: its answer has more than 3 pieces"]
