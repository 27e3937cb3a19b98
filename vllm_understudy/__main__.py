"""The command `understudy`, or `python -m vllm_understudy`:

runs `python -m app` of this installation.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from vllm_understudy.tree import command, environment


def main() -> NoReturn:
    """Replaces this process with `python -m app` and the same arguments."""
    words = command(*sys.argv[1:])
    os.execve(words[0], words, environment())


if __name__ == "__main__":
    main()
