"""`Host` lines that httptools, the usual parser of vLLM's server, accepts."""

from collections.abc import Iterator

import pytest

from tests.hostile.raw_client import Wire
from tests.running_server import RunningServer, running_gunicorn


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_gunicorn(env={"SIM_ALLOWED_HOSTS": "good.example"}) as running:
        yield running


@pytest.mark.parametrize("path", ["/health", "/version", "/admin/config"])
@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_request_without_a_host_is_answered(server: RunningServer, path: str, version: str) -> None:
    with Wire(server.port) as wire:
        answer = wire.send(f"GET {path} HTTP/{version}\r\n\r\n".encode()).answer()
        assert answer.status == 200


@pytest.mark.parametrize(
    ("hosts", "status"),
    [
        (("good.example", "good.example"), 200),
        (("good.example", "evil.example"), 200),
        (("evil.example", "good.example"), 403),
    ],
)
def test_first_of_two_hosts_applies(
    server: RunningServer, hosts: tuple[str, str], status: int
) -> None:
    lines = "".join(f"Host: {host}\r\n" for host in hosts)
    with Wire(server.port) as wire:
        answer = wire.send(f"GET /admin/config HTTP/1.1\r\n{lines}\r\n".encode()).answer()
        assert answer.status == status
        answer = wire.send(f"GET /health HTTP/1.1\r\n{lines}\r\n".encode()).answer()
        assert answer.status == 200
