"""PORT is honored, and options of gunicorn without an effect are logged."""

import os
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path

import pytest

from tests.hostile.raw_client import get, wait_until
from tests.running_server import (
    RunningServer,
    free_port,
    running_command,
    running_gunicorn,
    started,
)

BIND = """
import os
bind = "127.0.0.1:" + os.environ["SIM_PORT"]
control_socket_disable = True
graceful_timeout = 2
"""
"""A configuration that does not include ours.

gunicorn's own workers lose a signal that comes while they start, and are killed after
`graceful_timeout`.
"""
LISTENER = """
import sys

def hear(event):
    print("heard", type(event).__name__, file=sys.stderr)
"""
ENTRY_POINTS = "[gevent.plugins.monkey.did_patch_all]\nhear = gevent_listener:hear\n"
OUR_WORKER = 'worker_class = "app.core.server.gunicorn.worker.Worker"\n'
GUNICORN = [sys.executable, "-m", "gunicorn", "wsgi:app"]


def lines_with(server: RunningServer, text: str) -> list[str]:
    return [line for line in server.log().splitlines() if text in line]


def test_sim_port_takes_precedence_over_port() -> None:
    port = free_port()
    with running_command(GUNICORN, port, {"SIM_HOST": "127.0.0.1", "PORT": str(port)}) as server:
        assert lines_with(server, f"Listening at: http://127.0.0.1:{port} ")
    with running_gunicorn(env={"PORT": str(free_port())}) as server:
        assert lines_with(server, f"Listening at: http://127.0.0.1:{server.port} ")


def test_threads_and_max_requests_options_log_one_warning_each() -> None:
    flags = ("--threads", "4", "--max-requests", "10", "--max-requests-jitter", "3")
    with running_gunicorn(*flags) as server:
        [threads] = lines_with(server, "threads=")
        assert "threads=4: no effect: one event loop serves all requests of a worker" in threads
        [max_requests] = lines_with(server, "max_requests=")
        assert "max_requests=10, max_requests_jitter=3: no effect: " in max_requests


def test_startup_without_ignored_options_logs_no_warning() -> None:
    with running_gunicorn() as server:
        assert not lines_with(server, "WARNING")


@pytest.mark.parametrize("worker", ["sync", "gthread", "gevent"])
def test_startup_log_names_features_missing_from_a_standard_worker_class(
    worker: str,
) -> None:
    with running_gunicorn("-k", worker) as server:
        [line] = lines_with(server, "worker_class=")
        assert (
            f"worker_class={worker}: without the fast path, gRPC, client-timeout and a certificate"
            in line
        )


@pytest.mark.parametrize("more", ["", "preload_app = True\n", 'worker_class = "gevent"\n'])
def test_several_workers_without_the_shipped_configuration_log_one_line_at_the_start(
    tmp_path: Path, more: str
) -> None:
    configuration = tmp_path / "own.py"
    configuration.write_text(f"{BIND}workers = 3\n{more}")
    with running_gunicorn("-c", str(configuration)) as server:
        wait_until(lambda: bool(lines_with(server, "workers=3: all of them serve, in turn")))
        for _ in range(8):
            assert get(server.port, "/version").status == 200
        [line] = lines_with(server, "separate server")
        assert line.endswith(
            "first in the configuration file: from vllm_understudy.gunicorn_conf import *"
        )


def test_own_configuration_with_the_line_of_the_warning_serves_with_one_worker(
    tmp_path: Path,
) -> None:
    configuration = tmp_path / "own.py"
    configuration.write_text("from vllm_understudy.gunicorn_conf import *\nworkers = 4\n")
    with running_gunicorn("-c", str(configuration)) as server:
        [line] = lines_with(server, "separate server")
        assert "workers=4: one worker serves" in line
        assert len(lines_with(server, "Understudy plays vLLM")) == 1


def test_worker_with_another_configuration_warns_about_multiple_workers(
    tmp_path: Path,
) -> None:
    configuration = tmp_path / "own.py"
    configuration.write_text(f"{BIND}{OUR_WORKER}workers = 3\n")
    with running_gunicorn("-c", str(configuration)) as server:
        wait_until(lambda: bool(lines_with(server, "workers=")))
        [line] = lines_with(server, "workers=")
        assert (
            "workers=3: all of them serve, in turn, because this configuration does not include"
            in line
        )


def test_worker_with_another_configuration_starts_its_services(
    tmp_path: Path,
) -> None:
    configuration = tmp_path / "own.py"
    configuration.write_text(f"{BIND}{OUR_WORKER}")
    events_port = free_port()
    env = {"SIM_ENABLE_KVCACHE": "true", "SIM_ZMQ_ENDPOINT": f"tcp://*:{events_port}"}
    with running_gunicorn("-c", str(configuration), env=env) as server:
        with socket.create_connection(("127.0.0.1", events_port), timeout=20):
            pass
        assert not lines_with(server, "workers=")


@pytest.mark.parametrize("workers", [1, 2])
def test_starting_worker_with_another_configuration_ends_at_once(
    tmp_path: Path, workers: int
) -> None:
    """Its arbiter sends SIGTERM once, and waits for `graceful_timeout` if the signal is lost."""
    configuration = tmp_path / "own.py"
    configuration.write_text(f"{BIND}{OUR_WORKER}workers = {workers}\ngraceful_timeout = 60\n")
    command = [*GUNICORN[:-1], "-c", str(configuration), GUNICORN[-1]]
    env = {**os.environ, "SIM_PORT": str(free_port())}
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = started(command, env, log)
        try:
            written = Path(log.name)
            while written.read_text().count("Booting worker") < workers:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def test_installed_package_hears_of_the_patches_of_gevent(tmp_path: Path) -> None:
    (tmp_path / "gevent_listener.py").write_text(LISTENER)
    info = tmp_path / "gevent_listener-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gevent-listener\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    with running_gunicorn(env={"PYTHONPATH": str(tmp_path)}) as server:
        assert lines_with(server, "heard GeventDidPatchAllEvent")
