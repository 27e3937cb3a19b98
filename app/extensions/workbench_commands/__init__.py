"""The commands of the workbench. Each command imports its module when it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.core.extensions import Extension

if TYPE_CHECKING:
    from config import Settings as AllSettings


class WorkbenchCommands(Extension):
    """Adds commands that need no server, such as simulations, plans, checks, and rehearsals."""

    name = "workbench_commands"
    requires = ("console", "costs", "handoff", "journal", "kv_offload", "plugins", "recording")

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns False: a server needs no instance."""
        return False
