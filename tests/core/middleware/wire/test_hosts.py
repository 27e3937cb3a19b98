"""DNS rebinding and `allowed-origins: *`, on a real server that listens on every address."""

import sys
from collections.abc import Iterator

import pytest

from tests.hostile.raw_client import Whole, Wire, http_post
from tests.running_server import RunningServer, free_port, running_command, running_gunicorn

READABLE = ("/admin/config", "/admin/journal", "/admin/console/stream", "/console", "/server_info")
OPEN = ("/v1/models", "/health", "/metrics", "/version")
OWN_HOSTS = (
    "127.0.0.1:8000",
    "[::1]:8000",
    "localhost",
    "vllm",
    "vllm.default.svc:80",
    "Vllm.Example.com",
)
FOREIGN_HOSTS = ("evil.example", "evil.example.:8000", "127.0.0.1.evil.example")
SETTINGS = {
    "SIM_HOST": "0.0.0.0",
    "SIM_CONSOLE": "true",
    "SIM_SERVER_DEV_MODE": "true",
    "SIM_ALLOWED_HOSTS": "vllm.example.com",
    "SIM_ALLOWED_ORIGINS": "*,https://tool.example",
}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_gunicorn(env=SETTINGS) as running:
        yield running


def exchange(server: RunningServer, method: str, path: str, *headers: str) -> Whole:
    lines = [f"{method} {path} HTTP/1.1", *headers, "Connection: close"]
    if method == "POST":
        lines.append("Content-Length: 0")
    with Wire(server.port) as client:
        return client.send("\r\n".join([*lines, "", ""]).encode()).answer()


def status_line(server: RunningServer, method: str, path: str, *headers: str) -> int:
    """Reads the status alone: a feed of events has no end."""
    lines = [f"{method} {path} HTTP/1.1", *headers, "", ""]
    with Wire(server.port) as client:
        response = client.send("\r\n".join(lines).encode()).begin()
        try:
            return response.status
        finally:
            response.close()


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_rebound_host_name_can_neither_read_nor_control_the_server(
    server: RunningServer, host: str
) -> None:
    header = f"Host: {host}"
    for path in READABLE:
        assert status_line(server, "GET", path, header) == 403, path
        forwarded = "X-Forwarded-Host: localhost"
        assert status_line(server, "GET", path, header, forwarded) == 403, path
    same_origin = (header, f"Origin: http://{host}", "Sec-Fetch-Site: same-origin")
    for path in ("/pause", "/sleep", "/admin/drain", "/admin/console/pause"):
        assert exchange(server, "POST", path, *same_origin).status == 403, path
    rules = http_post(
        "/admin/script/rules", b'{"rules": []}', header, "Content-Type: application/json"
    )
    with Wire(server.port) as client:
        assert client.send(rules.replace(b"Host: localhost\r\n", b"")).answer().status == 403
    for path in OPEN:
        assert exchange(server, "GET", path, header).status == 200, path


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_requests_with_an_allowed_host_name_can_read_every_route(
    server: RunningServer, host: str
) -> None:
    for path in (*READABLE, *OPEN):
        assert status_line(server, "GET", path, f"Host: {host}") == 200, path


def test_wildcard_origin_does_not_open_the_journal(server: RunningServer) -> None:
    for path in ("/admin/journal", "/admin/config", "/console", "/server_info"):
        stranger = exchange(server, "GET", path, "Host: localhost", "Origin: https://evil.example")
        assert not [name for name in stranger.headers if name.startswith("access-control-")], path
        named = exchange(server, "GET", path, "Host: localhost", "Origin: https://tool.example")
        assert named.headers["access-control-allow-origin"] == "https://tool.example", path
        preflight_headers = ("Host: localhost", "Access-Control-Request-Method: GET")
        assert (
            exchange(
                server, "OPTIONS", path, *preflight_headers, "Origin: https://evil.example"
            ).status
            == 400
        )
        assert (
            exchange(
                server, "OPTIONS", path, *preflight_headers, "Origin: https://tool.example"
            ).status
            == 200
        )
    models = exchange(
        server, "GET", "/v1/models", "Host: localhost", "Origin: https://evil.example"
    )
    assert models.headers["access-control-allow-origin"] == "*"


def test_default_origins_of_vllm_open_no_control_route() -> None:
    port = free_port()
    words = (
        "serve",
        "understudy-tiny",
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--allowed-origins",
        '["*"]',
    )
    with running_command([sys.executable, "-m", "app", *words], port, {}) as running:
        origin = ("Host: localhost", "Origin: https://evil.example")
        settings = exchange(running, "GET", "/admin/config", *origin)
        assert settings.status == 403 and "access-control-allow-origin" not in settings.headers
        models = exchange(running, "GET", "/v1/models", *origin)
        assert models.headers["access-control-allow-origin"] == "*"
