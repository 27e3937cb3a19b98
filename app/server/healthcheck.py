"""`python -m app.server.healthcheck`: status 0 when all ranks of the server here are healthy, else 1.

For the container's health check: it finds port, ranks and TLS as the server does, in the environment and the
YAML file. Flags of another process it cannot see.
"""

from __future__ import annotations

import os
import ssl
import sys
from urllib.request import urlopen

from app.server.ranks import siblings
from config import ConfigError
from config.loader import load

PATIENCE_S = 2.0


def is_healthy(url: str) -> bool:
    """GET /health answers 200. Whose certificate it is does not matter: the server is this machine's."""
    unverified = ssl._create_unverified_context() if url.startswith("https:") else None
    try:
        with urlopen(f"{url}/health", timeout=PATIENCE_S, context=unverified) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def main() -> int:
    """Exit status."""
    try:
        settings = load((), os.environ, warn=lambda text: None)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    sick = [url for _, url in siblings(settings) if not is_healthy(url)]
    if sick:
        print(f"not healthy: {', '.join(sick)}", file=sys.stderr)
    return 1 if sick else 0


if __name__ == "__main__":
    sys.exit(main())
