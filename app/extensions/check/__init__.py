"""The command that checks command lines of vLLM before they are used in a cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from app.core.extensions import Command, Extension, late_command

if TYPE_CHECKING:
    from config import Settings as AllSettings


class Check(Extension):
    """Adds the command `check`."""

    name = "check"
    requires = ("lab",)

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns False: a server needs no instance."""
        return False

    @classmethod
    def commands(cls) -> Mapping[str, Command]:
        """Returns the command."""
        about = "check a command line of vLLM: options, model, memory"
        return {"check": late_command(f"{__package__}.command", about)}
