"""Rehearsals of an upgrade of vLLM: what breaks in a client, before the cluster is upgraded."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.extensions import Command, Extension, late_command


class Rehearse(Extension):
    """Adds the command `rehearse`."""

    name = "rehearse"
    requires = ("check", "journal", "lab", "recording")

    @classmethod
    def commands(cls) -> Mapping[str, Command]:
        """Returns the command."""
        about = "run a client against two versions of vLLM, and report what an upgrade breaks"
        return {"rehearse": late_command(f"{__package__}.command", about)}
