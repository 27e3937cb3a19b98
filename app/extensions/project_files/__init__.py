"""The command that writes example files into a project."""

from collections.abc import Mapping, Sequence

from app.core.extensions import Command, Extension


class ProjectFiles(Extension):
    """Adds the command `init`."""

    name = "project_files"

    @classmethod
    def commands(cls) -> Mapping[str, Command]:
        """Returns the command."""
        about = "write a compose file, a script, tests and a CI job for a project"
        return {"init": Command(_init, about)}


def _init(argv: Sequence[str]) -> int:
    from app.extensions.project_files.command import run  # other commands do not need it

    return run(argv)
