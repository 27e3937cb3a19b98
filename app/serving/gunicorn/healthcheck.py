"""`python -m app.serving.gunicorn.healthcheck`: exit status 0 when every rank is healthy, else 1.

Port, ranks and TLS come from the environment and the YAML file, as for a server's start. With
`--running` (the container's health check), they come from the environment of the server that runs
from this folder, which includes its flags.
"""

import os
import socket
import ssl
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from urllib.request import urlopen

from app.serving.gunicorn.ranks import siblings
from config import ConfigError
from config.loader import load

PATIENCE_S = 2.0
RUNNING = "--running"
ROOT = Path(__file__).resolve().parents[3]
APPLICATION = b"wsgi:app"
"""Argument in the command line of every Understudy server."""


def is_healthy_at(path: str, is_encrypted: bool) -> bool:
    """True if GET /health answers 200 at the Unix socket `path`.

    The certificate is not verified.
    """
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(PATIENCE_S)
    connection = HTTPConnection("localhost")
    try:
        client.connect(path)
        connection.sock = client
        if is_encrypted:
            connection.sock = ssl._create_unverified_context().wrap_socket(client)
        connection.request("GET", "/health")
        return connection.getresponse().status == HTTPStatus.OK
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()
        client.close()


def is_healthy(url: str) -> bool:
    """True if GET /health answers 200. The certificate is not verified: the server is local."""
    try:
        urlopen(
            f"{url}/health", timeout=PATIENCE_S, context=ssl._create_unverified_context()
        ).close()
    except OSError:  # another status, too
        return False
    return True


def environment_of_server() -> dict[str, str]:
    """Returns the environment of the oldest server from this folder; empty without one."""
    for process in sorted(Path("/proc").glob("[0-9]*"), key=lambda process: int(process.name)):
        with suppress(OSError):  # the process has ended, or belongs to another user
            words = (process / "cmdline").read_bytes().split(b"\0")
            if APPLICATION in words and (process / "cwd").resolve() == ROOT:
                parts = os.fsdecode((process / "environ").read_bytes()).split("\0")
                return dict(part.split("=", 1) for part in parts if "=" in part)
    return {}


def main(argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> int:
    if RUNNING in argv:
        environ = environment_of_server() or environ
    try:
        settings = load((), environ, warn=lambda text: None)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    path = settings.server.uds
    if path is not None:
        sick = [] if is_healthy_at(path, is_encrypted=settings.tls.enabled) else [f"unix:{path}"]
    else:
        sick = [url for _, url in siblings(settings) if not is_healthy(url)]
    if sick:
        print(f"not healthy: {', '.join(sick)}", file=sys.stderr)
    return 1 if sick else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
