"""Offline studies: simulated loads, plans, fleets, and measured servers. The cost model of GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from app.core.extensions import Command, Extension, late_command
from app.extensions.costs.settings import CostModelSettings

if TYPE_CHECKING:
    from app.core.engine.profile import Profile
    from config import Settings as AllSettings


class Lab(Extension):
    """Commands that simulate engines and fleets, and that measure real servers."""

    name = "lab"
    requires = ("console", "handoff", "kv_offload", "plugins")
    Settings = CostModelSettings

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns False: a server needs no instance of the lab."""
        return False

    @classmethod
    def profile(cls, settings: AllSettings, decided: Collection[str]) -> Profile | None:
        """Returns the profile of a model's config.json and a device's data sheet."""
        from app.extensions.costs.server_profile import server_profile

        return server_profile(settings, decided)

    @classmethod
    def commands(cls) -> Mapping[str, Command]:
        """Returns the commands."""
        return {
            "simulate": late_command(
                f"{__package__}.fidelity.simulate",
                "simulate a load on an engine or a fleet, without a GPU",
            ),
            "plan": late_command(
                f"{__package__}.plan.command",
                "find the cheapest fleet that meets an SLO under a load",
            ),
            "fleet": late_command(
                f"{__package__}.fleet.command", "start several servers and compare routing policies"
            ),
            "record": late_command(
                f"{__package__}.fidelity.record",
                "measure a real server, or record its exchanges (--proxy)",
            ),
            "calibrate": late_command(
                f"{__package__}.fidelity.calibrate",
                "fit a profile to recorded runs of a real server",
            ),
            "judge": late_command(
                f"{__package__}.judge.command", "compare a load tool's export with the journal"
            ),
        }
