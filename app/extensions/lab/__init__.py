"""Offline studies: simulated loads, plans, fleets, and measured servers. The cost model of GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from app.core.extensions import Command, Extension
from app.extensions.lab.settings import CostModelSettings

if TYPE_CHECKING:
    from app.core.engine.profile import Profile
    from config import Settings as AllSettings


class Lab(Extension):
    """Commands that simulate engines and fleets, and that measure real servers."""

    name = "lab"
    requires = ("console", "plugins")
    Settings = CostModelSettings

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns False: a server needs no instance of the lab."""
        return False

    @classmethod
    def profile(cls, settings: AllSettings, decided: Collection[str]) -> Profile | None:
        """Returns the profile of a model's config.json and a device's data sheet."""
        from app.extensions.lab.costs.server_profile import server_profile

        return server_profile(settings, decided)

    @classmethod
    def commands(cls) -> Mapping[str, Command]:
        """Returns the commands."""
        return {
            "simulate": _command(
                "fidelity.simulate", "simulate a load on an engine or a fleet, without a GPU"
            ),
            "plan": _command(
                "plan.command", "find the cheapest fleet that meets an SLO under a load"
            ),
            "fleet": _command(
                "fleet.command", "start several servers and compare routing policies"
            ),
            "record": _command(
                "fidelity.record", "measure a real server, or record its exchanges (--proxy)"
            ),
            "calibrate": _command(
                "fidelity.calibrate", "fit a profile to recorded runs of a real server"
            ),
            "judge": _command("judge.command", "compare a load tool's export with the journal"),
        }


def _command(module: str, about: str) -> Command:
    """Returns a command whose module is imported when the command runs."""

    def run(argv: Sequence[str]) -> int:
        status: int = import_module(f"{__package__}.{module}").run(argv)
        return status

    return Command(run, about)
