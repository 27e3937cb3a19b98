"""`make run` and `make llm`: where they listen, and what they do when the port is in use."""

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from venv import EnvBuilder

import pytest
import requests

from scripts import pip_progress
from tests.hostile.raw_client import wait_until
from tests.running_server import ROOT, free_port, running_command


@pytest.fixture
def taken_port() -> Iterator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def environment_folder(tmp_path: Path) -> Path:
    """An environment that make takes for complete, with the gunicorn of this one."""
    folder = tmp_path / "environment"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("")
    (folder / "bin" / "gunicorn").symlink_to(Path(sys.executable).with_name("gunicorn"))
    (folder / ".run").touch()
    return folder


def listens(address: str, port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex((address, port)) == 0


def plain_environment(**variables: str) -> dict[str, str]:
    """Our environment with `variables`, without settings, and without those of a make around us."""
    left_out = ("SIM_", "MAKE", "MFLAGS", "GUNICORN_")
    inherited = {name: text for name, text in os.environ.items() if not name.startswith(left_out)}
    return {**inherited, **variables}


@pytest.mark.parametrize(("target", "folder"), [("run", "VENV"), ("llm", "LLM")])
def test_occupied_port_is_reported_before_anything_is_installed(
    target: str, folder: str, taken_port: int, tmp_path: Path
) -> None:
    environment = tmp_path / "environment"
    done = subprocess.run(
        ["make", target, f"{folder}={environment}", f"PYTHON={sys.executable}"],
        cwd=ROOT,
        env=plain_environment(SIM_PORT=str(taken_port)),
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode != 0 and not environment.exists()
    [line] = [line for line in done.stderr.splitlines() if not line.startswith("make: ***")]
    assert line.startswith("error: cannot listen on ") and f":{taken_port}: " in line
    assert line.endswith(f"; choose another port: make {target} PORT={taken_port + 1}")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8")
@pytest.mark.parametrize(("host", "is_reached"), [(None, False), ("0.0.0.0", True)])
def test_make_run_serves_the_console_only_locally_by_default(
    host: str | None, is_reached: bool, environment_folder: Path
) -> None:
    port = free_port()
    command = ["make", "--silent", "run", f"VENV={environment_folder}"]
    hosts = {} if host is None else {"SIM_HOST": host}
    with running_command(command, port, {"SIM_PORT": str(port), **hosts}) as server:
        assert listens("127.0.0.2", port) == is_reached
        assert requests.get(f"{server.url}/console", timeout=20).status_code == 200
    wait_until(lambda: not listens("127.0.0.1", port))  # the server ends with make


def test_make_alone_prints_about_a_dozen_targets_that_exist() -> None:
    for command in (["make"], ["make", "help"]):
        done = subprocess.run(
            command, cwd=ROOT, env=plain_environment(), capture_output=True, text=True, timeout=50
        )
        assert (done.returncode, done.stderr) == (0, "")
        targets = re.findall(r"(?m)^  make ([\w-]+)  ", done.stdout)
        assert 10 <= len(targets) <= 15
        makefile = (ROOT / "Makefile").read_text("utf-8")
        assert [name for name in targets if f"\n{name}:" not in makefile] == []
        assert len(done.stdout.splitlines()) < 24  # a screen


def test_make_help_all_prints_every_described_target() -> None:
    done = subprocess.run(
        ["make", "help-all"],
        cwd=ROOT,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=50,
    )
    targets = set(re.findall(r"(?m)^make ([\w-]+) ", done.stdout))
    assert {"run", "test-all", "weekly", "clean"} <= targets
    assert "SPDX" not in done.stdout and "\nVENV" not in done.stdout


def test_port_of_make_is_the_port_of_the_server(environment_folder: Path) -> None:
    port = free_port()
    command = ["make", "run", f"VENV={environment_folder}", f"PORT={port}"]
    with running_command(command, port, {}) as server:
        assert requests.get(f"{server.url}/health", timeout=20).status_code == 200
        assert f"Understudy plays vLLM 0.32.0 at {server.url}; " in server.log()
        assert "exec env" not in server.log()
    wait_until(lambda: not listens("127.0.0.1", port))


def test_progress_counts_the_packages_that_pip_names(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("a==1\nb==2\nc==3\nd==4\n")
    pip = tmp_path / "python"
    pip.write_text('#!/bin/sh\nfor name in a b c d; do echo "Collecting $name==1"; done\nexit 0\n')
    pip.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(pip))
    assert pip_progress.main([str(requirements)]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines == [f"  {count} of 4 packages" for count in (1, 2, 3, 4)]
    pip.write_text("#!/bin/sh\necho 'No matching distribution'\nexit 3\n")
    assert pip_progress.main([str(requirements)]) == 3
    assert capfd.readouterr().err == "No matching distribution\n"


@pytest.mark.skipif(find_spec("ensurepip") is None, reason="needs ensurepip")
def test_environment_without_pip_gets_it(tmp_path: Path) -> None:
    """`uv sync` creates such an environment."""
    environment = tmp_path / "environment"
    EnvBuilder(symlinks=True).create(environment)
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("")
    python = environment / "bin" / "python"
    without_pip = [python, "-c", "import importlib.util; print(importlib.util.find_spec('pip'))"]
    assert subprocess.check_output(without_pip, cwd=tmp_path) == b"None\n"
    words = [python, ROOT / "scripts" / "pip_progress.py", requirements]
    subprocess.run(words, cwd=tmp_path, env=plain_environment(), check=True, timeout=50)
    subprocess.run([python, "-m", "pip", "--version"], cwd=tmp_path, check=True, timeout=50)


def test_make_run_puts_the_command_into_the_environment(environment_folder: Path) -> None:
    program = environment_folder / "bin" / "understudy"
    command = ["make", str(program), f"VENV={environment_folder}"]
    subprocess.run(command, cwd=ROOT, env=plain_environment(), check=True, timeout=50)
    interpreter = environment_folder / "bin" / "python"
    interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    interpreter.chmod(0o755)
    done = subprocess.run(
        [program, "--version"],
        cwd=environment_folder,
        env=plain_environment(),
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.stdout.startswith("understudy "), done.stderr
