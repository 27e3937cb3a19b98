"""Clients that would rather speak another protocol, and say so in their first request, as Java's do."""

from __future__ import annotations

import json
import socket

from tests.running_server import running_server

H2C = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
BODY = json.dumps({"prompt": "a", "max_tokens": 2})
REQUESTS = {
    "a probe": f"GET /health HTTP/1.1\r\nHost: a\r\n{H2C}\r\n",
    "a completion": "POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(BODY)}\r\n{H2C}\r\n{BODY}",
}


def test_an_upgrade_is_declined_by_an_answer() -> None:
    with running_server() as server:
        for request in REQUESTS.values():
            with socket.create_connection(("127.0.0.1", server.port), 10) as client:
                client.sendall(request.encode())
                assert client.recv(100).startswith(b"HTTP/1.1 200 ")
