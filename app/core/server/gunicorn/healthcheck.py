"""Command that checks a server: exit status 0 when every rank is healthy, else 1.

Usage: `python -m app.core.server.gunicorn.healthcheck`.

Port, ranks and TLS come from the environment and the YAML file, as for a server's start. With
`--running` (the container's health check), they come from the environment of the server that runs
from this folder, which includes its flags.
"""

import os
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path

from urllib3.exceptions import HTTPError

from app.core.base.http_pool import HttpPool, status_at_unix_socket
from app.core.server.gunicorn.ranks import rank_urls
from config import ConfigError
from config.loader import load_core
from config.settings import ServerSettings, TlsSettings

TIMEOUT_S = 2.0
MAX_BODY_BYTES = 1 << 16
MAX_SECONDS = 20
"""Longest time of a check of eight ranks, after which the process is killed.

A timeout of a socket is for each read, and a server may send a byte now and then.
"""
RUNNING = "--running"
ROOT = Path(__file__).resolve().parents[4]
APPLICATION = b"wsgi:app"
"""Argument in the command line of every Understudy server."""
CONFIGURATION = os.fsencode(ROOT / "gunicorn.conf.py")
"""Argument of a server that a command started in any folder; others run in `ROOT`."""


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    """Checks each rank, and prints those that are not healthy. Returns the exit status."""
    if RUNNING in argv:
        environ = environment_of_server() or environ
    try:
        settings = load_core(environ)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    unhealthy = unhealthy_addresses(settings.server, settings.tls)
    if unhealthy:
        print(f"not healthy: {', '.join(unhealthy)}", file=sys.stderr)
        return 1
    return 0


def unhealthy_addresses(server: ServerSettings, tls: TlsSettings) -> list[str]:
    """Returns the URLs of the ranks that are not healthy, or the Unix socket."""
    path = server.uds
    if path is None:
        return [url for _, url in rank_urls(server, tls) if not is_healthy(url)]
    if is_healthy_at(path, is_encrypted=tls.enabled):
        return []
    return [f"unix:{path}"]


def is_healthy_at(path: str, is_encrypted: bool) -> bool:
    """True if GET /health answers 200 at the Unix socket `path`."""
    with suppress(OSError):
        status = status_at_unix_socket(
            path, "/health", timeout_s=TIMEOUT_S, is_encrypted=is_encrypted
        )
        return status == HTTPStatus.OK
    return False


def is_healthy(url: str) -> bool:
    """True if GET /health answers 200. The certificate is not verified: the server is local."""
    with suppress(OSError, HTTPError):
        status, _ = HttpPool(verifies=False).request(
            "GET", f"{url}/health", timeout_s=TIMEOUT_S, max_bytes=MAX_BODY_BYTES
        )
        return status == HTTPStatus.OK
    return False


def environment_of_server(root: Path = Path("/proc")) -> dict[str, str]:
    """Returns the environment of the oldest server from this folder; empty without one.

    Changes to the server's working folder, where relative paths of its settings begin. `root` lists
    the processes.
    """
    for process in sorted(root.glob("[0-9]*"), key=lambda folder: int(folder.name)):
        with suppress(OSError):  # the process has ended, or belongs to another user
            arguments = (process / "cmdline").read_bytes().split(b"\0")
            folder = (process / "cwd").resolve()
            if APPLICATION in arguments and (CONFIGURATION in arguments or folder == ROOT):
                with suppress(FileNotFoundError):
                    os.chdir(folder)
                variables = os.fsdecode((process / "environ").read_bytes()).split("\0")
                return dict(variable.split("=", 1) for variable in variables if "=" in variable)
    return {}


if __name__ == "__main__":
    signal.alarm(MAX_SECONDS)
    sys.exit(main(sys.argv[1:]))
