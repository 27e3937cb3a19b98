"""Entry point of the container image: takes the commands of vLLM's image, and Understudy's.

--model X --port 8000           as vLLM's image, whose entry point is its server
serve X --port 8000             the same; also with `vllm` or `python3 -m vllm...` in front
gunicorn wsgi:app, sh, ...      programs are run as they are
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence

from app.core.cli import listed_commands, main, without_empty_start

SERVE = "serve"
MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
"""Modules that images and charts of earlier vLLM versions start."""


def words_of(argv: Sequence[str]) -> list[str] | None:
    """Returns the arguments of `app.core.cli`; None for another program, or for no arguments."""
    words = without_empty_start(argv)
    if words[:1] == ["vllm"]:
        words = without_empty_start(words[1:]) or ["--help"]
    elif (
        len(words) > 2
        and words[0].startswith("python")
        and words[1] == "-m"
        and words[2] in MODULES
    ):
        words = words[3:]
    elif not words or (words[0] not in listed_commands() and shutil.which(words[0])):
        return None
    return words if words[:1] and words[0] in listed_commands() else [SERVE, *words]


def run(argv: Sequence[str]) -> int:
    """Returns the exit status. Does not return when a server or program replaces this process."""
    words = words_of(argv)
    if words is not None:
        return main(words)
    program = without_empty_start(argv) or ["gunicorn", "wsgi:app"]
    os.execvp(program[0], program)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
