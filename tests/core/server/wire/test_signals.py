"""Signals to a running server: their number is no matter, and none of them ends it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from app.core.server.gunicorn.reloads import MAX_EARLIER_WORKERS
from tests.hostile.raw_client import PATIENCE_S, Wire, ask, get, post, wait_for_value, wait_until
from tests.hostile.stressed_server import workers_of
from tests.hostile.waits import wait_for_log, wait_for_log_count, wait_for_worker_count
from tests.running_server import ROOT, RunningServer, ending, free_port, running_gunicorn

STORM = 20
"""Signals of a storm."""
RANKS = 2
TO_ARBITERS = (signal.SIGHUP, signal.SIGUSR2, signal.SIGTTIN, signal.SIGTTOU, signal.SIGWINCH)
GUNICORN_FILE = f"exec(compile(open({str(ROOT / 'gunicorn.conf.py')!r}).read(), 'conf', 'exec'))\n"
"""A configuration that includes ours, so that it can be broken."""
BROKEN_IN_WORKERS = """\
import os
from pathlib import Path

from app.plugins import Plugin

API = 2
if Path({marker!r}).exists() and "UNDERSTUDY_RANK" in os.environ:
    1 / 0


class Silent(Plugin):
    name = "silent"

    def reply(self):
        return lambda request, rng: None


EXTENSION = Silent
"""
"""A plugin that the arbiter can load, and a worker cannot while the marker exists."""


def served_models(port: int) -> list[str]:
    return [model["id"] for model in get(port, "/v1/models").json()["data"]]


def write(file: Path, model: str) -> None:
    # Renamed, so that no reload reads a part of it.
    part = file.with_suffix(".part")
    part.write_text(f"served-model-name: {model}\ndata-parallel-size: {RANKS}\n")
    part.rename(file)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "settings.yaml"
    write(path, "before")
    return path


@pytest.fixture
def server(file: Path) -> Iterator[RunningServer]:
    """Two ranks whose settings are in `file`; their streams have a second to end."""
    env = {"SIM_CONFIG": str(file), "SIM_GRACEFUL_TIMEOUT": "1s", "SIM_INTER_TOKEN_LATENCY": "20ms"}
    with running_gunicorn(env=env, ports=RANKS) as running:
        for port in ports_of(running):
            wait_until(lambda port=port: served_models(port) == ["before"])
        yield running


def ports_of(server: RunningServer) -> range:
    return range(server.port, server.port + RANKS)


def wait_for_models(server: RunningServer, model: str) -> None:
    for port in ports_of(server):
        wait_for_value(served_models, port, equals=[model])


def test_storm_of_reloads_is_bounded_and_the_last_settings_win(
    server: RunningServer, file: Path
) -> None:
    worker_counts = []
    with ExitStack() as clients:
        streams = []
        for port in ports_of(server):
            wire = clients.enter_context(Wire(port))
            streams.append(wire.post(ask(max_tokens=150, stream=True)).events())
        for stream in streams:
            next(stream)
        for number in range(STORM):
            write(file, f"model-{number}")
            server.process.send_signal(signal.SIGHUP)
            # Each signal is seen before the next one is sent.
            wait_until(lambda: server.log().count("Handling signal: hup") == number + 1)  # noqa: B023
            worker_counts.append(len(workers_of(server)))
        wait_for_models(server, f"model-{STORM - 1}")
        assert [len(list(stream)) for stream in streams] == [149, 149]
    assert max(worker_counts) <= RANKS * (1 + MAX_EARLIER_WORKERS)
    wait_for_worker_count(server, RANKS)
    log = server.log()
    assert "the requested reload begins when the last one has ended" in log
    assert "still answers requests of 1 connections" in log
    assert "Traceback" not in log and "cutting off" not in log


def test_earliest_worker_has_to_end_when_too_many_answer_old_requests(
    server: RunningServer, file: Path
) -> None:
    with ExitStack() as clients:
        streams = []
        for number in range(MAX_EARLIER_WORKERS):
            wire = clients.enter_context(Wire(server.port))
            events = wire.post(ask(max_tokens=4000, stream=True)).events()
            clients.callback(events.close)
            next(events)
            streams.append(events)
            write(file, f"model-{number}")
            server.process.send_signal(signal.SIGHUP)
            # From then on, the earlier worker accepts no connection.
            wait_for_log_count(server, "still answers requests of 1 connections", number + 1)
        wait_for_worker_count(server, RANKS + MAX_EARLIER_WORKERS)
        assert "has 1 s to end" not in server.log()
        write(file, "last")
        server.process.send_signal(signal.SIGHUP)
        wait_for_models(server, "last")
        assert f"{MAX_EARLIER_WORKERS} workers of earlier reloads still answer" in server.log()
        assert server.log().count("is cutting off 1 requests") == 1
        with pytest.raises(Exception, match="IncompleteRead|without"):
            list(streams[0])
        for events in streams[1:]:
            next(events)
    wait_for_worker_count(server, RANKS)


def test_signals_for_the_arbiter_do_not_end_a_worker(server: RunningServer) -> None:
    workers = sorted(workers_of(server))
    with Wire(server.port) as wire:
        events = wire.post(ask(max_tokens=50, stream=True)).events()
        next(events)
        for worker in workers:
            for number in TO_ARBITERS:
                os.kill(worker, number)
        assert len(list(events)) == 49
    assert sorted(workers_of(server)) == workers


def test_signals_during_a_start_do_not_end_it(tmp_path: Path) -> None:
    port = free_port()
    command = [sys.executable, "-m", "app", "--host", "127.0.0.1", "--port", str(port)]
    log = tmp_path / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=output, start_new_session=True
        )

    def is_healthy() -> bool:
        # The Python interpreter itself cannot ignore signals before its first module.
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        if b"gunicorn" in command:
            process.send_signal(signal.SIGHUP)
            process.send_signal(signal.SIGUSR1)
            process.send_signal(signal.SIGTTIN)
        with suppress(ConnectionRefusedError):
            return get(port, "/health").status == 200
        return False

    with ending(process, is_healthy):
        wait_until(lambda: "Hang up: Master" in log.read_text())
        assert post(port, ask()).status == 200


def test_reload_with_a_broken_gunicorn_configuration_is_rejected(tmp_path: Path) -> None:
    configuration = tmp_path / "own.conf.py"
    configuration.write_text(GUNICORN_FILE)
    with running_gunicorn("-c", str(configuration)) as server:
        workers = workers_of(server)
        configuration.write_text(GUNICORN_FILE + "1 / 0\n")
        server.process.send_signal(signal.SIGHUP)
        wait_for_log(server, "reload rejected; keeping the old configuration: gunicorn's")
        assert workers_of(server) == workers
        configuration.write_text(GUNICORN_FILE)
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: set(workers).isdisjoint(workers_of(server)))
        assert post(server.port, ask()).status == 200


def test_worker_that_cannot_start_after_a_reload_ends_nothing(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    plugin = tmp_path / "silent.py"
    plugin.write_text(BROKEN_IN_WORKERS.format(marker=str(marker)))
    with running_gunicorn(env={"SIM_PLUGIN": str(plugin)}) as server:
        [worker] = workers_of(server)
        marker.touch()
        server.process.send_signal(signal.SIGHUP)
        wait_for_log(server, "a new worker cannot serve the settings; trying again")
        assert post(server.port, ask()).status == 200
        assert worker in workers_of(server)
        marker.unlink()
        wait_until(lambda: worker not in workers_of(server))
        assert post(server.port, ask()).status == 200


def successors_of(server: RunningServer) -> list[int]:
    """Process ids of the arbiters that SIGUSR2 has started, once they listen."""
    found = re.findall(r"Listening at: \S+ \((\d+)\)", server.log())
    return [int(pid) for pid in found if int(pid) != server.process.pid]


def test_successor_reloads_while_its_parent_has_the_pidfile(tmp_path: Path) -> None:
    pidfile = tmp_path / "server.pid"
    with running_gunicorn("--pid", str(pidfile)) as server:
        for _ in range(STORM):
            server.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: bool(successors_of(server)))
        [successor] = successors_of(server)
        try:
            os.kill(successor, signal.SIGHUP)
            wait_for_log(server, "Hang up: Master.2")
            assert pidfile.read_text().strip() == str(server.process.pid)
            new_file = tmp_path / "server.pid.2"
            assert new_file.read_text().strip() == str(successor)
            children = Path(f"/proc/{successor}/task/{successor}/children")
            wait_until(lambda: bool(children.read_text()))
            assert server.stop() == 0
            wait_until(lambda: pidfile.exists() and not new_file.exists())
            assert pidfile.read_text().strip() == str(successor)
            assert post(server.port, ask()).status == 200
            assert len(successors_of(server)) == 1
        finally:
            os.kill(successor, signal.SIGTERM)
        wait_for_log(server, f"[{successor}] [-] server: Shutting down")
        assert "Traceback" not in server.log()


def test_successor_that_cannot_start_leaves_the_workers_alone(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with running_gunicorn("--chdir", str(folder), env={"PYTHONPATH": str(ROOT)}) as server:
        workers = workers_of(server)
        shutil.rmtree(folder)
        server.process.send_signal(signal.SIGUSR2)
        wait_for_log(server, "cannot start a successor: ")
        wait_until(lambda: workers_of(server) == workers)
        assert post(server.port, ask()).status == 200


def test_log_file_that_cannot_be_opened_again_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    log = folder / "errors.log"
    with running_gunicorn("--error-logfile", str(log)) as server:
        with log.open() as lines:
            shutil.rmtree(folder)
            server.process.send_signal(signal.SIGUSR1)
            server.process.send_signal(signal.SIGTTIN)
            text = ""
            deadline_s = time.monotonic() + PATIENCE_S
            while "one for each rank" not in text and time.monotonic() < deadline_s:
                text += lines.read()
        assert "No such file or directory" in text
        assert "one for each rank" in text
        assert post(server.port, ask()).status == 200
        assert server.stop() == 0
