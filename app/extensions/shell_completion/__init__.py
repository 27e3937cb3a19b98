"""The command that prints completions for shells."""

from collections.abc import Mapping, Sequence

from app.core.extensions import Command, Extension


class ShellCompletion(Extension):
    """Adds the command `completion`."""

    name = "shell_completion"

    @classmethod
    def commands(cls) -> Mapping[str, Command]:
        """Returns the command."""
        about = "print completions for bash, zsh, or fish"
        return {"completion": Command(_completion, about)}


def _completion(argv: Sequence[str]) -> int:
    from app.core.cli import listed_commands  # the command line imports the extensions
    from app.core.settings import settings_table
    from app.extensions.shell_completion.command import run

    flags = [f"--{row.name}" for row in settings_table().rows]
    runners = {name: command.run for name, command in listed_commands().items()}
    return run(argv, runners, flags)
