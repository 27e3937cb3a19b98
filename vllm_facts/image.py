"""The command lines of vLLM's image, and of programs in an image.

--model X --port 8000           as vLLM's image, whose entry point is its server
serve X --port 8000             the same; also with `vllm` or `python3 -m vllm...` in front
gunicorn wsgi:app, sh, ...      programs are run as they are
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Container, Sequence

SERVE = "serve"
MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.cli.main")
"""Modules that images and charts of earlier vLLM versions start."""
OTHER_COMMANDS = frozenset(("bench", "chat", "collect-env", "complete", "launch", "run-batch"))
"""Commands of vLLM besides `serve`."""


def without_empty_start(argv: Sequence[str]) -> list[str]:
    """Returns the words from the first that is not empty: templates may put empty words first."""
    words = list(argv)
    while words and not words[0]:
        del words[0]
    return words


def words_of(argv: Sequence[str], commands: Container[str]) -> list[str] | None:
    """Returns the arguments of the command line; None for another program, or for no arguments.

    `commands` are the names of its commands.
    """
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
    elif not words or (words[0] not in commands and shutil.which(words[0])):
        return None
    return words if words[:1] and words[0] in commands else [SERVE, *words]


def run_words(
    argv: Sequence[str], commands: Container[str], main: Callable[[Sequence[str]], int]
) -> int:
    """Runs `main` or a program. Returns the exit status.

    Does not return when a server or program replaces this process.
    """
    words = words_of(argv, commands)
    if words is not None:
        return main(words)
    program = without_empty_start(argv) or ["gunicorn", "wsgi:app"]
    os.execvp(program[0], program)
