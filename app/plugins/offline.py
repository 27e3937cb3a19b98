"""What plugins say in `python -m app simulate`: what a step costs, in each of its processes."""

from __future__ import annotations

import time
from typing import Any

from msgspec import Struct

from app.clock.streams import Streams
from app.engine.step_cost import CostModel, StepCost
from app.plugins.registry import PluginRegistry
from config.plugins import from_plain, to_plain
from config.profile import Profile
from config.settings import Settings


class PluggedCosts(Struct, frozen=True):
    """Makes the costs of an engine by the plugins of `settings`, in whatever process it is pickled to."""

    settings: dict[str, Any]

    def __call__(self, profile: Profile) -> CostModel:
        return registry_of(from_plain(self.settings)).offline_step_cost(profile) or StepCost(profile.cost)


def plugged_costs(settings: Settings, profile: Profile) -> tuple[str, PluggedCosts] | None:
    """The plugin that says what the steps of this engine cost, and its costs; None where none does."""
    cost = registry_of(settings).offline_step_cost(profile)
    return None if cost is None else (cost.plugin, PluggedCosts(to_plain(settings)))


def registry_of(settings: Settings) -> PluginRegistry:
    """The plugins of a command. ConfigError as `PluginRegistry`."""
    streams = Streams(settings.reply.seed, 0)
    return PluginRegistry(settings.PLUGINS, lambda: settings, streams, time.monotonic)
