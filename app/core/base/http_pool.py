"""Requests to other servers by urllib3: one place for TLS, proxies, time limits and sizes.

`HttpPool` blocks its greenlet where gevent has patched sockets, and its thread elsewhere; commands
whose sockets are not patched use `app.shared.http_client`. Proxies in environment variables
are not used: they would hide which server answers. Import this module in the function that needs
a client, because urllib3 takes a tenth of a second.
"""

import logging
import socket
import ssl
import time
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPException
from typing import Literal

from urllib3 import BaseHTTPResponse, PoolManager, Retry, Timeout, disable_warnings
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError, InsecureRequestWarning

READ_BYTES = 1 << 16

# Warnings for headers of other servers, and for each connection that a full pool does not keep.
for _logger_name in ("urllib3.connection", "urllib3.connectionpool"):
    logging.getLogger(_logger_name).setLevel(logging.ERROR)


class ResponseSizeError(HTTPError):
    """A body is larger than its reader allows."""


class HttpPool:
    """Keeps up to `connections` open to each server.

    `verifies` is False for servers of this machine, whose certificates have other names. Without
    `retries`, failures are raised as they are, and redirects are not followed.
    """

    def __init__(
        self,
        *,
        connections: int = 1,
        retries: Retry | Literal[False] = False,
        verifies: bool = True,
    ) -> None:
        if not verifies:
            disable_warnings(InsecureRequestWarning)
        self._manager = PoolManager(
            maxsize=connections,
            retries=retries,
            cert_reqs="CERT_REQUIRED" if verifies else "CERT_NONE",
        )

    def request(
        self,
        method: str,
        url: str,
        *,
        timeout_s: float,
        max_bytes: int,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> tuple[int, bytes]:
        """Sends a request; returns status and body.

        Raises:
            HTTPError: of urllib3: the server cannot be reached, or gives no valid response.
            ResponseSizeError: the body is larger than `max_bytes`.
            TimeoutError: the response is not whole within `timeout_s`.
        """
        deadline_s = time.monotonic() + timeout_s
        # The end of the block closes the response, unless it is whole, which keeps its connection.
        with self.open(method, url, timeout=timeout_s, headers=headers, body=body) as response:
            return response.status, _read_body(response, deadline_s, max_bytes)

    def open(
        self,
        method: str,
        url: str,
        *,
        timeout: float | Timeout,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> BaseHTTPResponse:
        """Sends a request; returns a response whose body is not read. Close it.

        `timeout` is that of connecting and of each read. Raises HTTPError of urllib3.
        """
        return self._manager.request(
            method, url, body=body, headers=headers, timeout=timeout, preload_content=False
        )

    def close(self) -> None:
        """Closes the idle connections."""
        self._manager.clear()


def _read_body(response: BaseHTTPResponse, deadline_s: float, max_bytes: int) -> bytes:
    """Reads a body by parts: a timeout of a socket is for each read."""
    content = bytearray()
    part = response.read1(READ_BYTES)
    while part:
        content += part
        if len(content) > max_bytes:
            raise ResponseSizeError(f"the response exceeds {max_bytes >> 20} MiB")
        if time.monotonic() > deadline_s:
            raise TimeoutError("the response is not whole in time")
        part = response.read1(READ_BYTES)
    return bytes(content)


def status_at_unix_socket(path: str, target: str, *, timeout_s: float, is_encrypted: bool) -> int:
    """Returns the status of GET `target` at a Unix socket; certificates are not verified.

    Raises:
        OSError: the socket is closed, the response pauses for longer than `timeout_s`, or it is
            not valid.
    """
    with (
        socket.socket(socket.AF_UNIX) as client,
        closing(HTTPConnection("localhost", timeout=timeout_s)) as connection,
    ):
        client.settimeout(timeout_s)
        client.connect(path)
        connection.sock = client
        if is_encrypted:
            connection.sock = ssl._create_unverified_context().wrap_socket(client)
        connection.request("GET", target, preload_content=False)
        try:
            return connection.getresponse().status
        except HTTPException as error:
            raise ConnectionError(f"the response is not valid HTTP: {error!r}") from error
