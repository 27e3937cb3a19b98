"""What a step costs by a plugin."""

from __future__ import annotations

from math import isfinite
from typing import Any

from app.engine.batch import Batch
from app.engine.step_cost import CostModel, StepCost
from app.plugins.guard import Guard, HookFailed
from config.declaration import ConfigError
from config.profile import Profile


class GuardedCost:
    """The cost of a live engine: that of the profile, in a step for which the plugin fails."""

    def __init__(self, inner: CostModel, guard: Guard, profile: Profile) -> None:
        self._inner, self._guard = inner, guard
        self._usual = StepCost(profile.cost)

    def seconds(self, batch: Batch[Any], start_s: float, idle: bool) -> float:
        try:
            return self._guard.call(checked, self._inner, batch, start_s, idle)
        except HookFailed:
            return self._usual.seconds(batch, start_s, idle)


class CheckedCost:
    """The cost off line, where no other figures than the plugin's will do: ConfigError when it fails."""

    def __init__(self, inner: CostModel, plugin: str) -> None:
        self._inner, self.plugin = inner, plugin

    def seconds(self, batch: Batch[Any], start_s: float, idle: bool) -> float:
        try:
            return checked(self._inner, batch, start_s, idle)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ConfigError(f"plugin {self.plugin}: hook step_cost failed: {reason}") from None


def checked(cost: CostModel, batch: Batch[Any], start_s: float, idle: bool) -> float:
    """The seconds that `cost` gives. TypeError or ValueError where a step cannot take so long."""
    seconds = float(cost.seconds(batch, start_s, idle))
    if not isfinite(seconds) or seconds < 0:
        raise ValueError(f"a step cannot cost {seconds} s")
    return seconds
