"""The command that prints completions for shells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.extensions import Command


def _completion(argv: Sequence[str]) -> int:
    from app.core.cli import listed_commands  # the command line imports this module
    from app.core.settings import settings_table
    from app.extensions.shell_completion.command import run

    flags = [f"--{row.name}" for row in settings_table().rows]
    runners = {name: command.run for name, command in listed_commands().items()}
    return run(argv, runners, flags)


COMMANDS: Mapping[str, Command] = {
    "completion": Command(_completion, "print completions for bash, zsh, or fish"),
}
