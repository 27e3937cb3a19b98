"""A refused body: clients that send all of it before they read still get the answer."""

from collections.abc import Iterator

import pytest

from tests.hostile.raw_client import COMPLETIONS, Wire, http_post
from tests.running_server import RunningServer, running_gunicorn

LARGE = 30 << 20
"""Bytes of a body above all limits."""
PIECE = b"x" * (1 << 16)


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_gunicorn() as running:
        yield running


@pytest.mark.parametrize(
    ("path", "status"), [(COMPLETIONS, 413), ("/v1/responses", 413), ("/nowhere", 404)]
)
@pytest.mark.parametrize("is_chunked", [False, True])
def test_client_that_sends_a_large_body_first_gets_the_answer(
    server: RunningServer, path: str, status: int, is_chunked: bool
) -> None:
    with Wire(server.port) as wire:
        if is_chunked:
            head = http_post(path, b"").replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")
            wire.send(head)
            for _ in range(LARGE // len(PIECE)):
                wire.send(b"%x\r\n%b\r\n" % (len(PIECE), PIECE))
            wire.send(b"0\r\n\r\n")
        else:
            wire.send(http_post(path, b"x" * LARGE))
        answer = wire.answer()
        assert answer.status == status
        assert wire.sock.recv(1) == b""
