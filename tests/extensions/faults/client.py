"""A client that asks for faults and looks at every byte of the answer; requests as rules see them."""

import json
import socket
import ssl
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPResponse, IncompleteRead
from typing import Any, Self

from app.core.api.fault import RequestFacts
from tests.hostile.raw_client import PATIENCE_S, http_post

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
PATHS = (CHAT, TEXT)
TOKENS = 6
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Got:
    """An answer as far as it came: `whole` tells whether HTTP says that this is all."""

    status: int
    headers: dict[str, str]
    body: bytes
    whole: bool

    @property
    def chunks(self) -> list[str]:
        return [chunk.decode() for chunk in self.body.split(b"\n\n")[:-1]]


def question(path: str, stream: bool, **fields: Any) -> dict[str, Any]:
    """A request whose reply has exactly `TOKENS` tokens."""
    body = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
    return {**body, "max_tokens": TOKENS, "ignore_eos": True, "stream": stream, **fields}


class StrictTLSSocket(ssl.SSLSocket):
    """Raises SSLEOFError when the connection ends without close_notify, with every Python.

    Before Python 3.11.4 (Debian 12 has 3.11.2) such an end raised a plain SSLError.
    """

    def read(self, *arguments: Any) -> Any:
        try:
            return super().read(*arguments)
        except ssl.SSLError as error:
            if error.reason == "UNEXPECTED_EOF_WHILE_READING":
                raise ssl.SSLEOFError(*error.args) from error
            raise


def strict_tls_context() -> ssl.SSLContext:
    """Returns a context that trusts every server, and tells a broken connection from an ended one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.sslsocket_class = StrictTLSSocket
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF  # set by default before Python 3.11.4
    return context


class Asker:
    """One connection, over TLS if wanted. `with` closes it."""

    def __init__(self, port: int, *, tls: bool = False) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        if tls:
            context = strict_tls_context()
            self.sock = context.wrap_socket(self.sock, suppress_ragged_eofs=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.sock.close()

    def send(self, path: str, body: Any, version: str = "1.1", **headers: str) -> Self:
        """POST `body`; `X_Fault=...` is the header X-Fault."""
        lines = [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        data = http_post(
            path,
            json.dumps(body).encode(),
            "Content-Type: application/json",
            *lines,
            version=version,
        )
        self.sock.sendall(data)
        return self

    def answer(self) -> Got | None:
        """What came of the answer; None when the connection ended before a status line."""
        response = HTTPResponse(self.sock, method="POST")
        with closing(response):
            try:
                response.begin()
            except (ConnectionError, ssl.SSLEOFError):
                return None
            try:
                body = response.read()
                whole = True
            except IncompleteRead as cut:
                body = cut.partial
                whole = False
            except ssl.SSLEOFError:
                body = b""
                whole = False
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Got(response.status, headers, body, whole)

    def is_closed(self) -> bool:
        """The server has closed the connection; waits for it."""
        try:
            return self.sock.recv(1) == b""
        except (ConnectionResetError, ssl.SSLEOFError):
            return True


def ask(
    port: int, path: str, stream: bool, fault: str = "", version: str = "1.1", **headers: str
) -> Got | None:
    """One request with an X-Fault of `fault` on a connection of its own."""
    with Asker(port) as asker:
        headers_sent = {"X_Fault": fault, **headers} if fault else headers
        return asker.send(path, question(path, stream), version, **headers_sent).answer()


def got(
    port: int, path: str, stream: bool, fault: str = "", version: str = "1.1", **headers: str
) -> Got:
    """`ask`, of which something has to come."""
    answer = ask(port, path, stream, fault, version=version, **headers)
    assert answer is not None
    return answer


def asking(
    path: str = CHAT,
    model: str | None = "m",
    client: str = "me",
    tokens: float = 0.0,
    **headers: str,
) -> RequestFacts:
    """A request; `X_Fault=...` is its header X-Fault."""
    known_headers = {name.replace("_", "-").lower(): value for name, value in headers.items()}
    return RequestFacts(
        path,
        model,
        header=lambda name: known_headers.get(name.lower()),
        client=lambda: client,
        tokens=tokens,
    )
