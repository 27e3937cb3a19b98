"""The command that writes example files into a project."""

from collections.abc import Mapping

from app.core.extensions import Command, late_command

COMMANDS: Mapping[str, Command] = {
    "init": late_command(
        f"{__package__}.command",
        "write a Compose file, a script, tests, and a CI job for a project",
    ),
}
