"""The command `understudy`, or `python -m vllm_understudy`: runs this installation's server."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from vllm_understudy.tree import command, command_environment


def main() -> NoReturn:
    """Replaces this process with `python -m app` and the same arguments."""
    arguments = command(*sys.argv[1:])
    os.execve(arguments[0], arguments, command_environment())


if __name__ == "__main__":
    main()
