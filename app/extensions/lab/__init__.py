"""Offline studies: simulated loads, plans, fleets, and measured servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from app.core.extensions import Command, Extension

if TYPE_CHECKING:
    from app.core.engine.profile import Profile
    from config import Settings


class Lab(Extension):
    """Commands that simulate engines and fleets, and that measure real servers."""

    name = "lab"
    requires = ("console", "plugins")

    @classmethod
    def is_enabled(cls, settings: Settings) -> bool:
        """Returns False: the lab has commands only."""
        return False

    @classmethod
    def profile(cls, settings: Settings, limits: Mapping[str, int]) -> Profile:
        """Returns the profile of a model's config.json and a device's data sheet."""
        from app.core.profiles import VLLM_DEVICES
        from app.extensions.lab.costs.datasheet import profile_of

        steps = settings.steps
        return profile_of(
            steps.profile,
            None if steps.device in VLLM_DEVICES else steps.device,
            settings.model.tensor_parallel_size,
            steps.model_config or None,
            vllm_version=steps.vllm_version,
            limits=limits,
        )

    @classmethod
    def commands(cls) -> Mapping[str, Command]:
        """Returns the commands."""
        return {
            "simulate": _command(
                "fidelity.simulate", "say what an engine, or a fleet, would do with a load"
            ),
            "plan": _command(
                "plan.command", "find the cheapest fleet that meets an SLO under a load"
            ),
            "fleet": _command("fleet.command", "start several servers, and show what routing does"),
            "record": _command(
                "fidelity.record", "measure a real server, or keep its exchanges (--proxy)"
            ),
            "calibrate": _command(
                "fidelity.calibrate", "fit a profile to what was recorded of a real server"
            ),
        }


def _command(module: str, about: str) -> Command:
    """Returns a command whose module is imported when the command runs."""

    def run(argv: Sequence[str]) -> int:
        status: int = import_module(f"{__package__}.{module}").run(argv)
        return status

    return Command(run, about)
