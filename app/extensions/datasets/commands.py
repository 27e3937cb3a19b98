"""The command that makes a dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.extensions import Command


def _run(argv: Sequence[str]) -> int:
    from app.core.application import tokenizer_of
    from app.extensions.datasets.command import run

    return run(argv, tokenizer_of)


COMMANDS: Mapping[str, Command] = {
    "dataset": Command(_run, "make a dataset from recorded conversations"),
}
