"""Recordings for tests: files written line by line, and real proxies that write some."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from app.extensions.recording.exchange import (
    FORMAT,
    VERSION,
    Exchange,
    Header,
    RecordedAnswer,
    RecordedChunk,
    RecordedRequest,
    data_of,
    line_of,
    read_exchange,
)
from tests.forked_server import ForkedServer
from tests.running_server import RunningServer, free_port

CHAT = "/v1/chat/completions"
JSON_HEADERS = [("Content-Type", "application/json")]
STREAM_HEADERS = [("Content-Type", "text/event-stream")]
HEADER = line_of(Header(FORMAT, VERSION))


def chat(*texts: str, **fields: Any) -> dict[str, Any]:
    """A chat whose messages are the user's and the assistant's in turn."""
    messages = [
        {"role": ("user", "assistant")[number % 2], "content": text}
        for number, text in enumerate(texts)
    ]
    return {"model": "m", "messages": messages, **fields}


def exchange(
    sent: object,
    *chunks: tuple[float, bytes],
    target: str = CHAT,
    at_s: float = 0.0,
    **answer: Any,
) -> Exchange:
    """An exchange whose answer is a stream of `chunks`, each with its moment."""
    body = sent if isinstance(sent, bytes) else json.dumps(sent).encode()
    pieces = [RecordedChunk(moment_s, data_of(data)) for moment_s, data in chunks]
    end_s = chunks[-1][0] if chunks else 0.0
    request_fields: dict[str, Any] = {
        "headers": STREAM_HEADERS,
        "status": 200,
        "head_s": 0.0,
        "end_s": end_s,
    }
    return Exchange(
        at_s,
        RecordedRequest("POST", target, JSON_HEADERS, data_of(body)),
        RecordedAnswer(chunks=pieces, **request_fields | answer),
    )


def written(path: Path, exchanges: Sequence[Exchange], tail: bytes = b"") -> str:
    """A recording of `exchanges`, and what stands behind them."""
    path.write_bytes(HEADER + b"".join(map(line_of, exchanges)) + tail)
    return str(path)


def exchanges_of(path: Path) -> list[Exchange]:
    return [read_exchange(line) for line in path.read_bytes().splitlines()[1:]]


@contextmanager
def recording_proxy(target: RunningServer | str, out: Path, *flags: str) -> Iterator[RunningServer]:
    """The real proxy command before `target`; `out` is complete after the block."""
    url = target if isinstance(target, str) else target.url
    port = free_port()
    log = out.with_suffix(".log")
    words = ("record", "--proxy", "--target", url, "--out", str(out), "--port", str(port), *flags)
    log.touch()
    process = ForkedServer("app", words, env=os.environ, stdout=str(log), stderr=str(log))
    try:
        deadline = time.monotonic() + 20
        while "forwards to" not in log.read_text():
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        yield RunningServer(port, process, log)
        process.terminate()
        assert process.wait(20) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
