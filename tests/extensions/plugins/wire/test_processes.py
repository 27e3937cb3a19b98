"""Plugins across processes:

reloads, ranks, vLLM's command line, and what several plugins do together.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import requests

from tests.extensions.plugins.conftest import HEAD, plugin_module
from tests.extensions.plugins.test_processes import REPLY, SAYING, Write
from tests.hostile.raw_client import wait_until
from tests.running_server import ROOT, RunningServer, running_gunicorn, running_server


def reply_text(url: str) -> str:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    answer = requests.post(f"{url}/v1/chat/completions", json=body, timeout=20).json()
    return str(answer["choices"][0]["message"]["content"])


def reloaded(server: RunningServer, done: Callable[[], bool]) -> None:
    server.process.send_signal(signal.SIGHUP)
    wait_until(done)


def test_reload_reads_a_changed_plugin_but_not_a_broken_one(plugin: Write) -> None:
    path = plugin(SAYING.format(text="one"))
    with running_server("--plugin", path) as server:
        assert reply_text(server.url) == "one"
        Path(path).write_text(HEAD + "1 / 0\n")
        reloaded(server, lambda: "reload rejected" in server.log())
        assert "plugin mine" in server.log() and reply_text(server.url) == "one"
        plugin(SAYING.format(text="two"))
        reloaded(server, lambda: reply_text(server.url) == "two")


def test_each_rank_loads_the_plugins(plugin: Write) -> None:
    path = plugin(SAYING.format(text="one"))
    env = {"SIM_PLUGIN": path, "SIM_DATA_PARALLEL_SIZE": "2"}
    with running_gunicorn(env=env, ports=2) as server:
        assert reply_text(server.url) == reply_text(f"http://127.0.0.1:{server.port + 1}") == "one"


def installed(folder: Path, text: str) -> dict[str, str]:
    (folder / "shouting.py").write_text(text)
    info = folder / "shouting_package-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting-package\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[understudy]\nshouting = shouting\n")
    return dict(os.environ) | {"PYTHONPATH": str(folder)}


def told_plugins(environ: dict[str, str], *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "app", "plugins", *flags]
    return subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=50
    )


def test_installed_plugin_package_is_loaded_unless_disabled(tmp_path: Path) -> None:
    environ = installed(tmp_path, plugin_module(REPLY, "shouting"))
    listed = told_plugins(environ).stdout
    assert listed.startswith("built-in extensions:\n")
    assert "\n  forms " in listed
    assert listed.endswith(
        "plugins:\n  shouting 1.2 (package shouting-package): \n    hooks: reply\n"
    )
    assert told_plugins(environ, "--no-installed-plugins").stdout.endswith("\nno plugins\n")
    once = told_plugins(environ, "--plugin", "shouting").stdout  # named besides: it is the same one
    assert "\n  shouting 1.2" in once and once.count("hooks:") == 1


def test_error_names_the_package_of_a_broken_plugin(tmp_path: Path) -> None:
    done = told_plugins(installed(tmp_path, "import nothing_of_the_kind\n"))
    assert done.returncode == 1
    assert done.stderr.startswith(
        "error: plugin shouting (package shouting-package) cannot be imported: "
    )
