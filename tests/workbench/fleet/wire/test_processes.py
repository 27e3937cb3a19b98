"""Servers start on free ports, say why when they do not, and never outlive the block."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from workbench.fleet.processes import (
    ROOT,
    FleetError,
    Processes,
    ServerProcess,
    server_environment,
)

SERVE = """
import sys
from wsgiref.simple_server import make_server
def app(environ, start_response):
    start_response("200 OK", [])
    return [b""]
make_server("127.0.0.1", int(sys.argv[1]), app).serve_forever()
"""
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SERVE}"


@contextmanager
def processes() -> Iterator[Processes]:
    started = Processes()
    try:
        yield started
    finally:
        started.close()


def begun(started: Processes, name: str, text: str) -> ServerProcess:
    port = started.port()
    return started.start(name, port, [sys.executable, "-c", text, str(port)])


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_servers_run_inside_the_with_block_and_are_stopped_after_it() -> None:
    with processes() as started:
        servers = [begun(started, "server", SERVE) for _ in range(2)]
        for server in servers:
            started.wait(server)
            assert server.is_healthy()
        assert len({server.address for server in servers}) == 2
        started.check()
    assert not any(is_alive(server.process.pid) for server in servers)


def test_server_that_ignores_sigterm_is_killed_after_the_with_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("workbench.fleet.processes.STOP_TIMEOUT_S", 0.1)
    with processes() as started:
        server = begun(started, "server", STUBBORN)
        started.wait(server)
    assert server.process.returncode == -signal.SIGKILL


def test_failed_startup_is_reported_in_one_line() -> None:
    text = "print('begun'); print('error: no such file'); print('bye'); raise SystemExit(3)"
    with processes() as started, pytest.raises(FleetError) as failed:
        started.wait(begun(started, "pod 7", text))
    assert str(failed.value).startswith("pod 7 (127.0.0.1:")
    assert str(failed.value).endswith("exited with status 3: error: no such file")


def test_waiting_for_a_silent_server_times_out() -> None:
    with (
        processes() as started,
        pytest.raises(FleetError, match=r"pod is not healthy after 0\.1 s"),
    ):
        started.wait(begun(started, "pod", "import time; time.sleep(60)"), 0.1)


def test_servers_do_not_inherit_their_settings_from_the_environment() -> None:
    environ = {
        "PATH": "/bin",
        "SIM_PORT": "1",
        "VLLM_API_KEY": "k",
        "POD_NAME": "p",
        "PYTHONHASHSEED": "0",
    }
    assert server_environment(environ) == {"PATH": "/bin", "PYTHONPATH": str(ROOT)}
    assert "KV_INDEX_REDIS_URL" not in server_environment({"KV_INDEX_REDIS_URL": "redis://another"})
    assert server_environment({"HF_TOKEN": "mine"})["HF_TOKEN"] == "mine"
    assert server_environment({"PYTHONPATH": "/mine"}) == {"PYTHONPATH": f"{ROOT}:/mine"}
