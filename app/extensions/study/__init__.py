"""Studies of running fleets: load and latencies by metrics, compared with a simulation."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.extensions import Command, Extension, late_command


class Study(Extension):
    """Adds the command `study`."""

    name = "study"
    requires = ("check", "lab")

    @classmethod
    def commands(cls) -> Mapping[str, Command]:
        """Returns the command."""
        about = "measure a running fleet by its metrics, and compare it with a simulation"
        return {"study": late_command(f"{__package__}.command", about)}
