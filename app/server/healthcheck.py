"""`python -m app.server.healthcheck`: status 0 when all ranks of the server here are healthy, else 1.

It finds port, ranks and TLS as a server would that is started here, in the environment and the YAML file.
With `--running`, as the container's health check has it, it looks at the environment of the server that does
run from this folder, in which its flags are, too.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.request import urlopen

from app.server.ranks import siblings
from config import ConfigError
from config.loader import load

PATIENCE_S = 2.0
RUNNING = "--running"
ROOT = Path(__file__).resolve().parents[2]
APPLICATION = b"wsgi:app"
"""Stands in the command line of every server of ours."""


def is_healthy(url: str) -> bool:
    """GET /health answers 200. Whose certificate it is does not matter: the server is this machine's."""
    unverified = ssl._create_unverified_context() if url.startswith("https:") else None
    try:
        with urlopen(f"{url}/health", timeout=PATIENCE_S, context=unverified) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def environment_of_server(processes: Path = Path("/proc")) -> dict[str, str] | None:
    """What the oldest server was started with that runs from this folder; None without one of ours."""
    for number in sorted(int(entry.name) for entry in processes.iterdir() if entry.name.isdigit()):
        process = processes / str(number)
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            if APPLICATION in words and (process / "cwd").resolve() == ROOT:
                return _variables((process / "environ").read_bytes())
        except OSError:  # it has ended, or is somebody else's
            continue
    return None


def _variables(block: bytes) -> dict[str, str]:
    parts = (os.fsdecode(part).partition("=") for part in block.split(b"\0") if part)
    return {name: text for name, _, text in parts}


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Exit status."""
    if RUNNING in argv:
        environ = environment_of_server() or environ
    try:
        settings = load((), environ, warn=lambda text: None)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    sick = [url for _, url in siblings(settings) if not is_healthy(url)]
    if sick:
        print(f"not healthy: {', '.join(sick)}", file=sys.stderr)
    return 1 if sick else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
