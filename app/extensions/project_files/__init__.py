"""The command that writes example files into a project."""

from collections.abc import Mapping

from app.core.extensions import Command, Extension, late_command


class ProjectFiles(Extension):
    """Adds the command `init`."""

    name = "project_files"

    @classmethod
    def commands(cls) -> Mapping[str, Command]:
        """Returns the command."""
        about = "write a Compose file, a script, tests, and a CI job for a project"
        return {"init": late_command(f"{__package__}.command", about)}
