"""The memory that a server may hold by default fits the memory of each deployment that we ship."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from app.core.application import create_app
from app.core.base import Bounded
from app.core.settings import load, resolve, settings_type
from app.core.text.template_process import process_memory
from config import Settings
from config.sizes import whole_size
from tests import helm_chart, yaml_text
from tests.running_server import ROOT
from vllm_facts.serve import settings_of

PROCESS_BYTES = 64 << 20
"""Memory of a process that has served a few requests; 48 MiB were measured."""
MAX_CONNECTION_BYTES = 64 << 20
"""Memory of a thousand connections with their handlers, and of heads that arrive."""
COMPOSE_FILES = (
    "docker-compose.yml",
    "deploy/routers/docker-compose.yml",
    "examples/project/understudy/compose.yaml",
)
MANIFESTS = (
    *sorted((ROOT / "deploy/kubernetes").glob("*.yaml")),
    *sorted((ROOT / "deploy/routers").glob("*.yaml")),
)
ROLES = {
    "default": (),
    "indexer": ("--role", "indexer"),
    "embed": ("--task", "embed"),
    "sglang": ("--dialect", "sglang"),
    "render": ("--render-only", "true"),
    "console": ("--console",),
    "KV index beside a model": ("--kv-index", "--enable-kvcache"),
    "templates of requests": ("--trust-request-chat-template", "true"),
}


def ignore(warning: str) -> None:
    """Ignores a warning about a setting."""


class Deployment(NamedTuple):
    """A server with its memory, in bytes."""

    name: str
    words: Sequence[str]
    environ: Mapping[str, str]
    memory_bytes: int

    def settings(self) -> Settings:
        """Returns the settings of the server, with the memory of its container."""
        words = list(self.words)
        environ = {**self.environ, "SIM_FORCE_DUMMY_TOKENIZER": "true"}
        kind = settings_type()
        if words and words[0] == "serve":
            settings = resolve(settings_of(words[1:], environ, kind), environ, ignore)
        else:
            settings = load((), environ)
        return replace(settings, server=replace(settings.server, server_memory=self.memory_bytes))


def compose_services() -> Iterator[Deployment]:
    for file in COMPOSE_FILES:
        services = yaml_text.document((ROOT / file).read_text())["services"]
        for name, service in services.items():
            image = service["image"]
            if "understudy" not in image or "llm" in image:
                continue  # another program, or a model that computes
            words = service.get("command") or []
            if isinstance(words, str):
                words = shlex.split(words)
            environ = {
                key: value
                for key, value in service.get("environment", {}).items()
                if key != "SIM_SCRIPT"
            }
            yield Deployment(
                f"{file}:{name}", words, environ, whole_size(_size(service["mem_limit"]))
            )


def pods() -> Iterator[Deployment]:
    objects: list[dict[str, Any]] = [*helm_chart.objects()]
    for file in MANIFESTS:
        objects += yaml_text.documents(file.read_text())
    for described in objects:
        if described["kind"] not in ("Deployment", "StatefulSet"):
            continue
        [container] = described["spec"]["template"]["spec"]["containers"]
        if "understudy" not in container["image"]:
            continue
        environ = {
            variable["name"]: variable.get("value", "10.0.0.1")
            for variable in container.get("env", ())
            if variable["name"] != "SIM_CONFIG"
        }
        memory = container["resources"]["limits"]["memory"]
        name = described["metadata"]["name"]
        yield Deployment(name, container.get("args", ()), environ, whole_size(f"{memory}B"))


def _size(compose_size: str) -> str:
    """Returns a size of Compose, whose units are binary, as our settings spell it."""
    return f"{compose_size[:-1]}{compose_size[-1].upper()}iB"


def deployments() -> list[Deployment]:
    return [*compose_services(), *pods()]


def held_bytes(settings: Settings) -> int:
    """Returns the most memory of all processes of a server with the default limits."""
    app = create_app(settings)
    assert app.middleware.memory is not None
    caches: dict[str, Bounded] = {"requests": app.middleware.memory()}
    for source in app.caches:
        caches.update(source())
    limit_bytes = sum(cache.limit_bytes for cache in caches.values())
    ranks = len(settings.server.ranks)
    total = ranks * (limit_bytes + PROCESS_BYTES) + MAX_CONNECTION_BYTES
    if settings.api.trust_request_chat_template:
        total += ranks * process_memory(settings.server.server_memory or 0)
    return total


@pytest.mark.parametrize("deployment", deployments(), ids=attrgetter("name"))
def test_server_of_a_shipped_deployment_fits_its_memory(deployment: Deployment) -> None:
    held = held_bytes(deployment.settings())
    assert held <= deployment.memory_bytes, f"{held >> 20} MiB"


@pytest.mark.parametrize("role", ROLES)
def test_server_of_each_role_fits_a_container_of_one_gibibyte(role: str) -> None:
    settings = load((*ROLES[role], "--server-memory", "1GiB"), {})
    held = held_bytes(settings)
    assert held <= 1 << 30, f"{held >> 20} MiB"


def test_every_kind_of_deployment_is_checked() -> None:
    shipped = deployments()
    assert len(shipped) > 15
    assert {deployment.memory_bytes for deployment in shipped} == {1 << 30}
    assert any(len(deployment.settings().server.ranks) > 1 for deployment in shipped)
