"""Faults over TLS, where a connection that breaks ends without a farewell."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.client import CHAT, PATHS, Asker, question
from tests.running_server import running_server

DONE = "data: [DONE]"


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running_server("--self-signed-certs") as server:
        yield server.port


class Socket(ssl.SSLSocket):
    """Calls a connection that breaks by its name of today; before 3.11.4 Python had none for it."""

    def read(self, *arguments: Any) -> Any:
        try:
            return super().read(*arguments)
        except ssl.SSLError as error:
            if error.reason == "UNEXPECTED_EOF_WHILE_READING":
                raise ssl.SSLEOFError(*error.args) from error
            raise


def context() -> ssl.SSLContext:
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.sslsocket_class = Socket
    # Before 3.11.4 a connection that breaks would look like one that ends.
    trusting.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    trusting.check_hostname = False
    trusting.verify_mode = ssl.CERT_NONE
    return trusting


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_breaks_off_after_so_many_chunks(port: int, path: str) -> None:
    with Asker(port, context()) as asker:
        asker.send(path, question(path, True), X_Fault="disconnect; after=3")
        received = b""
        with pytest.raises(ssl.SSLEOFError):  # a TLS connection that ends well says so
            while data := asker.sock.recv(65536):
                received += data
        assert received.count(b"data: ") == 3 and not received.endswith(b"0\r\n\r\n")


def test_the_connection_ends_before_the_status_line(port: int) -> None:
    with Asker(port, context()) as asker:
        asker.send(CHAT, question(CHAT, True), X_Fault="disconnect")
        assert asker.is_closed()
