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
        """Returns the commands."""
        about = "measure a running fleet by its metrics, and compare it with a simulation"
        decide = late_command(f"{__package__}.decide", "compare changes of a measured fleet")
        return {
            "study": late_command(f"{__package__}.command", about),
            "plan --study": decide,
            "plan --what-if": decide,
        }
