"""Entry point of the container image: see `app.core.entrypoint`."""

import sys

from app.core.entrypoint import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
