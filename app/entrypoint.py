"""Entry point of the container image; see `vllm_facts.image`."""

import sys
from collections.abc import Sequence

from app.core.cli import listed_commands, main
from vllm_facts.image import run_words


def run(argv: Sequence[str]) -> int:
    """Returns the exit status. Does not return when a server or program replaces this process."""
    return run_words(argv, listed_commands(), main)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
