"""The command that checks command lines of vLLM, and files of clusters, before they are used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Command, Extension, late_command

if TYPE_CHECKING:
    from config import Settings as AllSettings


class Check(Extension):
    """Adds the command `check`, and a line to the log of a server that simulates a device."""

    name = "check"
    requires = ("lab", "recording")

    @classmethod
    def commands(cls) -> Mapping[str, Command]:
        """Returns the command."""
        about = "check command lines of vLLM, also in the files of a cluster"
        return {"check": late_command(f"{__package__}.command", about)}

    @classmethod
    def startup_lines(cls, settings: AllSettings) -> Sequence[str]:
        """Returns a line if the model would not fit on the device that the server simulates."""
        from app.core.profiles import VLLM_DEVICES

        if settings.steps.device in VLLM_DEVICES:
            return ()
        from workbench.check.startup import memory_line  # few servers simulate a device

        line = memory_line(settings)
        return (line,) if line else ()
