"""The command that prints completions for shells."""

from app.core.extensions import Extension


class ShellCompletion(Extension):
    """Adds the command `completion`."""

    name = "shell_completion"
