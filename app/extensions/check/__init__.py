"""The command that checks command lines of vLLM, and files of clusters, before they are used."""

from collections.abc import Mapping

from app.core.extensions import Command, Extension, late_command


class Check(Extension):
    """Adds the command `check`."""

    name = "check"
    requires = ("lab",)

    @classmethod
    def commands(cls) -> Mapping[str, Command]:
        """Returns the command."""
        about = "check command lines of vLLM, also in the files of a cluster"
        return {"check": late_command(f"{__package__}.command", about)}
