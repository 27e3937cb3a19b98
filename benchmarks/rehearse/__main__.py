"""`python -m benchmarks.rehearse`; see `benchmarks.rehearse.command`."""

import sys

from benchmarks.rehearse.command import run

if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
