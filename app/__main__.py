"""`python -m app`; see `app.core.cli`."""

import sys

from app.core.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
