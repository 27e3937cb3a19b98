"""Sends requests to servers of tests.

Proxies in environment variables are not used, and certificates are not verified: the servers
belong to the tests. urllib3 is imported with the first request, as most test runs load this
package without starting a server.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from contextlib import closing
from http.client import HTTPException
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from urllib3.connection import HTTPConnection

TIMEOUT_S = 10.0
MAX_RESPONSE_BYTES = 256 << 20
"""Longest response: the journals of eight ranks keep 128 MiB."""


def send(
    method: str,
    url: str,
    body: bytes | None = None,
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> tuple[int, bytes]:
    """Returns status and body. Connecting and each read may take `timeout_s`.

    Raises:
        OSError: the server does not respond, or not with valid HTTP, or with more than
            `MAX_RESPONSE_BYTES`.
    """
    from urllib3.exceptions import HTTPError

    parts = urlsplit(url)
    target = parts.path
    if parts.query:
        target += f"?{parts.query}"
    try:
        with closing(_connection(parts.scheme, parts.netloc, timeout_s)) as connection:
            connection.request(method, target, body, headers, preload_content=False)
            response = connection.getresponse()
            content = response.read(MAX_RESPONSE_BYTES + 1)
    except (HTTPException, HTTPError) as error:
        raise ConnectionError(repr(error)) from error
    if len(content) > MAX_RESPONSE_BYTES:
        raise ConnectionError(f"the response is longer than {MAX_RESPONSE_BYTES >> 20} MiB")
    return response.status, content


def _connection(scheme: str, address: str, timeout_s: float) -> HTTPConnection:
    from urllib3.connection import HTTPConnection, HTTPSConnection

    host, _, port = address.rpartition(":")
    if scheme == "http":
        return HTTPConnection(host, int(port), timeout=timeout_s)
    unverified = ssl._create_unverified_context()
    return HTTPSConnection(host, int(port), timeout=timeout_s, ssl_context=unverified)
