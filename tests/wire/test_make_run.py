"""`make run` and `make llm`: where they listen, and what they do when the port is in use."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import requests

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
    assert f"SIM_PORT={taken_port + 1} make {target}, or --port" in line


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
