"""The ways to start it, and the ways that are refused."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.hostile.raw_client import Wire, ask, metric, post, wait_until
from tests.hostile.stressed_server import workers_of
from tests.hostile.waits import wait_for_log
from tests.running_server import ROOT, RunningServer, free_port, running_gunicorn, running_server


def start_refused(*arguments: str, **variables: str) -> tuple[int, str]:
    """Exit status and output of a gunicorn that should not start. TimeoutExpired when it does."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SIM_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "gunicorn", *arguments, "wsgi:app"],
        cwd=ROOT,
        env={**inherited, "SIM_HOST": "127.0.0.1", "SIM_PORT": str(free_port()), **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=8)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return process.returncode, output


def test_missing_script_prevents_startup_with_a_one_line_error() -> None:
    status, output = start_refused(SIM_SCRIPT="/nowhere")
    [line] = output.splitlines()
    assert status == 1 and line.startswith("error: ") and "/nowhere" in line


def test_occupied_port_prevents_startup_immediately_with_a_one_line_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        begun_s = time.monotonic()
        status, output = start_refused(SIM_PORT=str(port))
    reason = "Address already in use; choose another port with --port or SIM_PORT"
    assert (status, output) == (1, f"error: cannot listen on 127.0.0.1:{port}: {reason}\n")
    assert time.monotonic() - begun_s < 5, "gunicorn tries for as long"


def test_reload_of_a_preloaded_server_fails_no_request_or_stream() -> None:
    env = {"SIM_INTER_TOKEN_LATENCY": "10ms", "SIM_GRACEFUL_TIMEOUT": "20s"}
    with running_gunicorn("--preload", env=env) as server:
        [first] = workers_of(server)
        assert post(server.port, {"prompt": "Off the hub, too."}, "/tokenize").status == 200
        with Wire(server.port) as streaming:
            events = streaming.post(ask(max_tokens=150, stream=True)).events()
            next(events)
            server.process.send_signal(signal.SIGHUP)
            statuses = []

            def replaced() -> bool:
                with Wire(server.port) as late:
                    # Long enough for the worker of before to be told to go in the meantime.
                    time.sleep(0.05)
                    statuses.append(late.post(ask()).answer().status)
                return first not in workers_of(server) and len(workers_of(server)) == 1

            wait_until(replaced)
            assert len(list(events)) == 149
        assert set(statuses) == {200}
        assert post(server.port, ask(max_tokens=3)).json()["usage"]["completion_tokens"] == 3
        assert metric(server.port, "vllm:request_success_total") > 0
        assert "Traceback" not in server.log()
        assert server.stop(5) == 0


def successor_of(server: RunningServer) -> int | None:
    """Process id of the arbiter that SIGUSR2 has started, once it listens."""
    started = re.findall(r"Listening at: \S+ \((\d+)\)", server.log())
    return next((int(pid) for pid in started if int(pid) != server.process.pid), None)


def test_replacement_server_takes_over_the_port() -> None:
    flags = ("--profile", "qwen3-14b-h100", "--console", "--served-model-name", "a,b")
    with running_server(*flags) as server:
        lines = [line.partition("server: ")[2] for line in server.log().splitlines()]
        # A hostile client of an earlier test may still send to a port that is given again.
        lines = [line for line in lines if not line.startswith("Invalid request")]
        assert (
            lines[0]
            == "vLLM 0.32.0 (names and proven behavior); model: a, b; timing: steps of profile qwen3-14b-h100"
        )
        assert lines[1].startswith("KV events: published to tcp://127.0.0.1:5557; topic kv@")
        assert lines[2].startswith(f"Listening at: http://127.0.0.1:{server.port} (")
        url = f"http://127.0.0.1:{server.port}"
        assert lines[3] == f"Understudy plays vLLM 0.32.0 at {url}; console: {url}/console"
        assert lines[4].startswith(f"try: curl -s {url}/v1/chat/completions -H ")
        assert len(lines) == 5
        server.process.send_signal(signal.SIGUSR2)
        wait_until(lambda: successor_of(server) is not None)
        successor = successor_of(server)
        assert successor is not None
        try:
            wait_until(
                lambda: bool(Path(f"/proc/{successor}/task/{successor}/children").read_text())
            )
            assert server.stop(5) == 0
            for _ in range(3):
                assert post(server.port, ask()).status == 200
            assert "Traceback" not in server.log()
        finally:
            os.kill(successor, signal.SIGTERM)
        wait_for_log(server, f"[{successor}] [-] server: Shutting down")
