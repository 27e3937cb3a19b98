"""The command that lists plugins."""

from collections.abc import Mapping

from app.core.extensions import Command, late_command

COMMANDS: Mapping[str, Command] = {
    "plugins": late_command(
        f"{__package__}.command", "list the extensions and plugins, with hooks and settings"
    ),
}
