"""Calls that change one rank of a server and fail at another, which restarts."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from vllm_understudy import ControlError
from vllm_understudy.control import CHOKE, Server

CONFIG = "/admin/config"
ALL_RANKS = "?ranks=all"


class PartialServer(Server):
    """A server whose first rank obeys, and whose second rank does not answer."""

    def __init__(self) -> None:
        super().__init__(port=1, log_file=Path("missing"))
        self.values: dict[str, Any] = {"fault-rules": [], "seed": 7, "script": []}
        self.is_choked = False
        self.is_second_rank_up = False

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        if path == CHOKE:
            self.is_choked = method == "POST"
        if path == CONFIG:
            return dict(self.values)
        if path == CONFIG + ALL_RANKS:
            if "seed" in (body or {}):
                raise ControlError("400: seed cannot change")
            self.values.update(body or {})
        if method == "POST" and not self.is_second_rank_up:
            raise ControlError("503: accepted by rank 0")
        return {}


@pytest.fixture
def server() -> PartialServer:
    return PartialServer()


def test_throttling_that_one_rank_rejects_is_undone_at_the_other_ranks(
    server: PartialServer,
) -> None:
    with pytest.raises(ControlError, match="accepted by rank 0"), server.choke(paused=True):
        pass
    assert not server.is_choked


def test_reset_restores_a_setting_whose_change_failed_at_one_rank(server: PartialServer) -> None:
    with pytest.raises(ControlError, match="accepted by rank 0"):
        server.fault("error", status=503)
    assert server.values["fault-rules"]
    server.is_second_rank_up = True
    server.reset()
    assert server.values["fault-rules"] == []


def test_reset_does_not_send_a_setting_that_was_rejected(server: PartialServer) -> None:
    with pytest.raises(ControlError, match="seed cannot change"):
        server.configure(seed=8)
    server.is_second_rank_up = True
    server.reset()
    assert server.values["seed"] == 7


@pytest.mark.parametrize(
    ("kind", "problem"),
    [("endless", "longer than 1 MiB"), ("garbage", "not JSON")],
)
def test_unusable_response_of_a_server_is_a_control_error(
    monkeypatch: pytest.MonkeyPatch, kind: str, problem: str
) -> None:
    monkeypatch.setattr("vllm_understudy.http_client.MAX_RESPONSE_BYTES", 1 << 20)
    with answering(kind) as port:
        server = Server(port=port, log_file=Path("missing"))
        with pytest.raises(ControlError, match=problem):
            server.ask("GET", CONFIG)


@contextmanager
def answering(kind: str) -> Iterator[int]:
    """The port of a server whose body never ends, or is not JSON."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):  # the client has left
                self.wfile.write(b"[" * 10_000)
                while kind == "endless":
                    self.wfile.write(b" " * (1 << 16))

        def log_message(self, *values: object) -> None:
            """Logs nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http_server:
        http_server.daemon_threads = True
        Thread(target=http_server.serve_forever, daemon=True).start()
        yield http_server.server_port
        http_server.shutdown()
