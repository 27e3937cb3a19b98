"""The cost model of GPUs: profiles that are computed from data sheets."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension
from app.extensions.costs.settings import CostModelSettings

if TYPE_CHECKING:
    from app.core.engine.profile import Profile
    from config import Settings as AllSettings


class Costs(Extension):
    """Computes the profile auto, and logs a line if the model would not fit on its device."""

    name = "costs"
    Settings = CostModelSettings

    @classmethod
    def profile(cls, settings: AllSettings, decided: Collection[str]) -> Profile | None:
        """Returns the profile of a model's config.json and a device's data sheet."""
        from app.extensions.costs.server_profile import server_profile

        return server_profile(settings, decided)

    @classmethod
    def startup_lines(cls, settings: AllSettings) -> Sequence[str]:
        """Returns a line if the model would not fit on the device that the server simulates."""
        from app.core.profiles import VLLM_DEVICES

        if settings.steps.device in VLLM_DEVICES:
            return ()
        from app.extensions.costs.startup_line import memory_line  # few simulate a device

        line = memory_line(settings)
        return (line,) if line else ()
