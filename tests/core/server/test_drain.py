"""The listener of a stopping server accepts established connections and refuses new ones."""

import socket
import sys
from collections.abc import Iterator

import pytest

from app.core.server.gunicorn.drain import admit_handshakes, refuse_handshakes

BRIEF_S = 0.1
"""Time after which a handshake is not completed, because its first packet is dropped."""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


@pytest.mark.skipif(sys.platform != "linux", reason="a socket filter of Linux")
def test_listener_that_rejects_handshakes_accepts_established_connections(
    listener: socket.socket,
) -> None:
    address = listener.getsockname()
    with socket.create_connection(address) as established:
        established.sendall(b"early")
        refuse_handshakes(listener)
        with pytest.raises(TimeoutError):
            socket.create_connection(address, BRIEF_S)
        accepted, _ = listener.accept()
        with accepted:
            established.sendall(b" and late")
            established.shutdown(socket.SHUT_WR)
            with accepted.makefile("rb") as stream:
                assert stream.read() == b"early and late"
    admit_handshakes(listener)
    with socket.create_connection(address):
        listener.accept()[0].close()


def test_rejecting_handshakes_does_not_affect_unix_sockets(tmp_path: object) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{tmp_path}/socket")
        listener.listen()
        refuse_handshakes(listener)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{tmp_path}/socket")
