"""The arguments of the container for Testcontainers. No container is started."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from app.core.cli import listed_commands
from vllm_facts.image import words_of

MODULE = "vllm_understudy.testcontainers"


class RecordingContainer:
    """Has the methods of testcontainers' DockerContainer, and notes their arguments."""

    def __init__(self, image: str) -> None:
        self.image = image
        self.command: list[str] = []
        self.ports: tuple[int, ...] = ()
        self.waits_for: Any = None

    def with_command(self, command: list[str]) -> "RecordingContainer":
        self.command = command
        return self

    def with_exposed_ports(self, *ports: int) -> "RecordingContainer":
        self.ports = ports
        return self

    def waiting_for(self, strategy: Any) -> "RecordingContainer":
        self.waits_for = strategy
        return self

    def get_container_host_ip(self) -> str:
        return "docker.example"

    def get_exposed_port(self, port: int) -> int:
        return 30_000 + port


class RecordingStrategy:
    """Has the methods of testcontainers' HttpWaitStrategy."""

    def __init__(self, port: int, path: str) -> None:
        self.request = (port, path)
        self.limit_s = 0

    def with_startup_timeout(self, limit_s: int) -> "RecordingStrategy":
        self.limit_s = limit_s
        return self


@pytest.fixture
def containers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, with classes that note their arguments instead of testcontainers'."""
    for name in ("testcontainers", "testcontainers.core"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    container: Any = ModuleType("testcontainers.core.container")
    container.DockerContainer = RecordingContainer
    strategies: Any = ModuleType("testcontainers.core.wait_strategies")
    strategies.HttpWaitStrategy = RecordingStrategy
    for module in (container, strategies):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    yield importlib.import_module(MODULE)
    sys.modules.pop(MODULE, None)


def test_python_settings_become_the_command_of_the_container(containers: Any) -> None:
    container = containers.UnderstudyContainer("understudy:0.1.0", max_num_seqs=2, console=True)
    assert container.image == "understudy:0.1.0"
    assert container.command[0] == "understudy"
    words = " ".join(container.command[1:])
    assert words.startswith("--host 0.0.0.0 --port 8000 --seed 7 --journal 1000 ")
    assert words.endswith("--max-num-seqs 2 --console true")
    assert container.ports == (8000,)
    assert container.waits_for.request == (8000, "/health")
    assert container.waits_for.limit_s == 60


def test_image_entry_point_runs_the_command_as_a_program(
    containers: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "understudy"  # the image has it in /usr/local/bin
    program.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    command = containers.container_command({"max_num_seqs": 2})
    assert words_of(command, listed_commands()) is None


def test_container_is_reached_at_the_published_port_of_the_docker_host(containers: Any) -> None:
    container = containers.UnderstudyContainer(admin_key="secret")
    assert container.base_url == "http://docker.example:38000/v1"
    assert container.server.url == "http://docker.example:38000"


@pytest.mark.parametrize("name", ["host", "port", "data_parallel_size"])
def test_host_and_ports_of_the_container_cannot_be_changed(containers: Any, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} cannot be set, because .* port 8000"):
        containers.UnderstudyContainer(**{name: 2})


def test_missing_package_raises_an_error_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "testcontainers", None)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with pytest.raises(ImportError, match=r"pip install testcontainers"):
        importlib.import_module(MODULE)
