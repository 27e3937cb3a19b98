"""A container of the image for Testcontainers: `UnderstudyContainer`.

    from vllm_understudy.testcontainers import UnderstudyContainer

    with UnderstudyContainer("understudy:0.1.0", max_num_seqs=2) as container:
        container.server.reply(then={"text": "Hello."})
        ask(container.base_url)

It needs the package `testcontainers` 4.13 or newer, and an image that was built from the repository
(`make image`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vllm_understudy.control import Server
from vllm_understudy.rules import Json
from vllm_understudy.running import JOURNAL, SEED, flags

if TYPE_CHECKING:
    from typing import Any

    DockerContainer: Any
    HttpWaitStrategy: Any
else:
    try:
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.wait_strategies import HttpWaitStrategy
    except ImportError as error:
        raise ImportError(
            "vllm_understudy.testcontainers requires testcontainers 4.13 or newer; to install it,"
            " run pip install testcontainers"
        ) from error

IMAGE = "understudy"
"""Name of the image that `make image` builds."""
PORT = 8000
"""Port in the container."""
START_LIMIT_S = 60


class ContainerServer(Server):
    """Controls a server whose port another host may publish."""

    def __init__(self, host: str, port: int, admin_key: str | None) -> None:
        super().__init__(port, Path(), admin_key)
        self._host = host

    @property
    def url(self) -> str:
        """Address of the server."""
        return f"http://{self._host}:{self.port}"

    def log(self) -> str:
        """Returns nothing: `container.get_logs()` has the server's output."""
        return ""


class UnderstudyContainer(DockerContainer):  # type: ignore[misc]
    """A container with a server, which is ready when `start` or the `with` statement returns."""

    def __init__(self, image: str = IMAGE, **settings: Json) -> None:
        """`settings` have the names of docs/configuration.md, `_` for `-`; the port is 8000."""
        super().__init__(image)
        self._admin_key: str | None = None
        if settings.get("admin_key"):
            self._admin_key = str(settings["admin_key"])
        self.with_command(container_command(settings))
        self.with_exposed_ports(PORT)
        health = HttpWaitStrategy(PORT, "/health").with_startup_timeout(START_LIMIT_S)
        self.waiting_for(health)

    @property
    def server(self) -> ContainerServer:
        """Controls the server of a started container: replies, faults, requests, verdict."""
        host = self.get_container_host_ip()
        return ContainerServer(host, int(self.get_exposed_port(PORT)), self._admin_key)

    @property
    def base_url(self) -> str:
        """The `base_url` of the OpenAI SDK for a started container."""
        return self.server.base_url


def container_command(settings: dict[str, Json]) -> list[str]:
    """Returns the command of a container with these settings.

    Raises:
        ValueError: A setting would move the server from the port that the container exposes.
    """
    for name in ("host", "port", "data_parallel_size"):
        if settings.get(name) is not None:
            raise ValueError(f"{name} cannot be set, because the container exposes port {PORT}")
    defaults: dict[str, Json] = {"host": "0.0.0.0", "port": PORT, "seed": SEED, "journal": JOURNAL}
    return ["understudy", *flags({**defaults, **settings})]
