"""Plugins across processes: reloads, ranks, vLLM's command line, and what several plugins do together."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import requests

from tests.plugins.test_processes import SAYING, Write
from tests.running_server import RunningServer, running_gunicorn, running_server


def said(url: str) -> str:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    answer = requests.post(f"{url}/v1/chat/completions", json=body, timeout=20).json()
    return str(answer["choices"][0]["message"]["content"])


def reloaded(server: RunningServer, done: Callable[[], bool]) -> None:
    """Reload, and wait until it shows."""
    server.process.send_signal(signal.SIGHUP)
    deadline = time.monotonic() + 20
    while not done():
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.05)


def test_a_reload_reads_a_file_again_and_refuses_one_that_is_broken(plugin: Write) -> None:
    path = plugin(SAYING.format(text="one"))
    with running_server("--plugin", path) as server:
        assert said(server.url) == "one"
        plugin("1 / 0")
        reloaded(server, lambda: "reload refused" in server.log())
        assert "plugin mine" in server.log() and said(server.url) == "one"
        plugin(SAYING.format(text="two"))
        reloaded(server, lambda: said(server.url) == "two")


def test_each_rank_has_the_plugins(plugin: Write) -> None:
    path = plugin(SAYING.format(text="one"))
    env = {"SIM_PLUGIN": path, "SIM_DATA_PARALLEL_SIZE": "2"}
    with running_gunicorn(env=env, ports=2) as server:
        assert said(server.url) == said(f"http://127.0.0.1:{server.port + 1}") == "one"
