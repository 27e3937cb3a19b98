"""`python -m research.rehearse`; see `research.rehearse.command`."""

import sys

from research.rehearse.command import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
