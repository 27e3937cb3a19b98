"""Checks that a server can listen, before `make` installs packages for minutes.

python scripts/free_port.py HOST TARGET: for `make TARGET`, which listens on HOST (or SIM_HOST) and
on SIM_PORT or PORT. Prints one line and exits with status 1 when the port is in use. Needs no
packages.
"""

import errno
import os
import socket
import sys

DEFAULT_PORT = "8000"
ADDRESS_VARIABLES = ("SIM_CONFIG", "SIM_UDS", "GUNICORN_CMD_ARGS")
"""Variables that may name another address. The server itself checks that address at its start."""


def in_use(host: str, port: int) -> bool:
    """Returns True if another socket listens on the address.

    Other errors are left to the server.
    """
    family = socket.AF_INET
    if ":" in host:
        family = socket.AF_INET6
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def main(host: str, target: str) -> int:
    """Returns the exit status."""
    if any(os.environ.get(name) for name in ADDRESS_VARIABLES):
        return 0
    host = os.environ.get("SIM_HOST") or host
    port = os.environ.get("SIM_PORT") or os.environ.get("PORT") or DEFAULT_PORT
    if not port.isdecimal() or int(port) > 0xFFFF or not in_use(host, int(port)):
        return 0
    print(
        f"error: cannot listen on {host}:{port}: Address already in use; choose another port: "
        f"make {target} PORT={(int(port) + 1) % 0x10000}",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
