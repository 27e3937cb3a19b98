"""Offline studies (simulated loads, plans, fleets, measured servers), and the cost model of GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from app.core.extensions import Command, Extension
from app.core.profiles import AUTO, VLLM_DEVICES
from app.extensions.lab.settings import CostModelSettings

if TYPE_CHECKING:
    from app.core.engine.profile import Profile
    from config import Settings as AllSettings

ENGINE_LIMITS = ("max-num-seqs", "max-num-batched-tokens", "block-size")
"""Settings on which the memory of an engine, and so the size of its KV cache, depends."""


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
        steps = settings.steps
        section = settings.section(CostModelSettings)
        device = None if steps.device in VLLM_DEVICES else steps.device
        model_config = section.model_config or None
        if steps.profile != AUTO and not (device or model_config or section.vllm_version):
            return None
        from app.extensions.lab.costs.datasheet import profile_of  # few servers compute a profile

        rows = settings.table.by_name
        return profile_of(
            steps.profile,
            device,
            settings.model.tensor_parallel_size,
            model_config,
            vllm_version=section.vllm_version,
            limits={
                name.replace("-", "_"): rows[name].value(settings)
                for name in ENGINE_LIMITS
                if name in decided
            },
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
