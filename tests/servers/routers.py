"""The recipes of docs/routers.md and docs/sglang.md, started in front of servers on free ports."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.needs import CADDY, HAPROXY, NGINX, SERVERS_BIN
from tests.running_server import ROOT, RunningServer, free_port, running_command
from tests.servers.starts import as_somebody

PAGES = "".join((ROOT / "docs" / name).read_text("utf-8") for name in ("routers.md", "sglang.md"))
RECIPES: dict[str, str] = {
    name: text for name, text in re.findall(r'```\w+ title="([^"]+)"\n(.*?)```', PAGES, re.DOTALL)
}
"""The blocks of the pages by their title."""
ROUTER_PORT = 8080
SERVER_PORTS = (8001, 8002)
EVENT_PORTS = (5557, 5558)
NO_PORTS: Mapping[int, int] = {}
NGINX_FRAME = """
daemon off; pid {folder}/nginx.pid; error_log stderr;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}; proxy_temp_path {folder}; fastcgi_temp_path {folder};
    uwsgi_temp_path {folder}; scgi_temp_path {folder};
    {recipe}
}}
"""
TRAEFIK_FRAME = """
entryPoints: {{web: {{address: "127.0.0.1:{port}"}}}}
providers: {{file: {{filename: {recipe}}}}}
"""


def recipe_of(
    name: str,
    port: int,
    servers: Sequence[RunningServer],
    event_ports: Sequence[int] = (),
    other_ports: Mapping[int, int] = NO_PORTS,
) -> str:
    """Returns the recipe `name` with the ports of a router and its servers.

    `other_ports` maps further ports of the recipe to those in use.
    """
    numbers = {str(ROUTER_PORT): str(port)}
    for recipe_port, other_port in other_ports.items():
        numbers[str(recipe_port)] = str(other_port)
    for recipe_port, server in zip(SERVER_PORTS, servers, strict=False):
        numbers[str(recipe_port)] = str(server.port)
    for recipe_port, event_port in zip(EVENT_PORTS, event_ports, strict=False):
        numbers[str(recipe_port)] = str(event_port)
    return re.sub(r"\b\d{4}\b", lambda match: numbers.get(match[0], match[0]), RECIPES[name])


@contextmanager
def routed(
    name: str,
    folder: Path,
    servers: Sequence[RunningServer],
    event_ports: Sequence[int] = (),
    flags: Sequence[str] = (),
    other_ports: Mapping[int, int] = NO_PORTS,
) -> Iterator[RunningServer]:
    """Starts the recipe `name` in front of `servers`; `flags` are added to a command."""
    port = free_port()
    recipe = recipe_of(name, port, servers, event_ports, other_ports)
    command = [*_command(name, recipe, folder, port), *flags]
    with running_command(command, port, {}) as router:
        yield router


def _command(name: str, recipe: str, folder: Path, port: int) -> list[str]:
    file = folder / f"{name}.yaml"
    if name.startswith(("vllm-router", "sglang-router")):
        program, *words = shlex.split(recipe.replace("\\\n", " "))
        metrics = ("--prometheus-port", str(free_port()))
        checks = ("--worker-startup-check-interval", "1")
        return [str(SERVERS_BIN / program), *words, *metrics, *checks]
    if name == "nginx":
        file.write_text(NGINX_FRAME.format(folder=folder, recipe=recipe))
        return as_somebody([str(NGINX), "-c", str(file), "-e", "stderr"])
    if name == "traefik":
        rules = folder / "rules.yaml"
        rules.write_text(recipe)
        file = folder / "traefik.yaml"
        file.write_text(TRAEFIK_FRAME.format(port=port, recipe=rules))
        return [str(SERVERS_BIN / "traefik"), f"--configFile={file}"]
    if name == "caddy":
        file.write_text("{\n\tadmin off\n\tauto_https off\n}\n" + recipe)
        return [str(CADDY), "run", "--adapter", "caddyfile", "--config", str(file)]
    file.write_text(recipe)
    if name == "envoy":
        options = ("--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning")
        return [str(SERVERS_BIN / "envoy"), "-c", str(file), *options]
    assert name == "haproxy"
    return as_somebody([str(HAPROXY), "-db", "-f", str(file)])
