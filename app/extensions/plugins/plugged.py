"""Step costs and policies of plugins, for commands that simulate and plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.core.engine.profile import Profile
    from app.core.engine.step_cost import CostModel
    from app.extensions.plugins.policies import AutoscalerStart, PolicyMaker
    from config import Settings


def step_costs(
    settings: Settings, profile: Profile
) -> tuple[str, Callable[[Profile], CostModel]] | None:
    """Returns the name of the plugin that sets step costs, and its cost models; None without."""
    if not settings.PLUGINS:
        return None
    from app.extensions.plugins.registry import plugged_costs

    return plugged_costs(settings, profile)


def autoscalers(settings: Settings) -> Mapping[str, AutoscalerStart]:
    """Returns the autoscaling policies of plugins, by name."""
    if not settings.PLUGINS:
        return {}
    from app.extensions.plugins.registry import plugged_autoscalers

    return plugged_autoscalers(settings)


def routing_policies(settings: Settings) -> Mapping[str, PolicyMaker]:
    """Returns the routing policies of plugins, by name."""
    if not settings.PLUGINS:
        return {}
    from app.extensions.plugins.registry import plugged_policies

    return plugged_policies(settings)
