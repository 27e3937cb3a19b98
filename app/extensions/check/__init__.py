"""The command that checks command lines of vLLM before they are used in a cluster."""

from collections.abc import Mapping

from app.core.extensions import Command, Extension, late_command


class Check(Extension):
    """Adds the command `check`."""

    name = "check"
    requires = ("lab",)

    @classmethod
    def commands(cls) -> Mapping[str, Command]:
        """Returns the command."""
        about = "check a command line of vLLM: options, model, memory"
        return {"check": late_command(f"{__package__}.command", about)}
