"""The command that checks and tries scripts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.extensions import Command


def _run(argv: Sequence[str]) -> int:
    from app.extensions.scripts.command import run
    from app.extensions.scripts.resolver import messages_of

    return run(argv, messages_of)


COMMANDS: Mapping[str, Command] = {
    "script": Command(_run, "check and try scripted replies, or make a script from a recording"),
}
