"""Plugins in commands: `python -m app plugins` lists them, and `simulate` uses their step costs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from app.engine.core.step_cost import CostModel, StepCost
from app.plugins.registry import registry_of
from config import ConfigError, Settings
from config.loader import load
from config.plugins import from_plain, to_plain
from config.profile import Profile


def run(argv: Sequence[str]) -> int:
    """Prints the plugins of a server started with the flags `argv`; returns the exit status."""
    try:
        settings = load(argv, os.environ, warn=lambda text: None)
        implemented = registry_of(settings).implemented()
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.status
    for plugin in settings.PLUGINS:
        about = (getattr(plugin.hooks, "__doc__", None) or "").strip().partition("\n")[0]
        print(f"{plugin.name} {plugin.version}".rstrip() + f" ({plugin.origin}): {about}")
        print(f"  hooks: {', '.join(implemented[plugin.name]) or 'none'}")
        for row in settings.table.rows:
            if row.group == plugin.group:
                rules = f" The value {row.limits}." if row.limits else ""
                value = row.write(row.value(settings)) if not row.secret else "***"
                print(f"  --{row.name} ({row.kind.name}, {row.env[0]}; now {value!r}): {row.help}{rules}")
    if not settings.PLUGINS:
        print("no plugins")
    return 0


class PluggedCosts(Struct, frozen=True):
    """Creates an engine's cost model from the plugins of `settings`. Can be pickled for other processes."""

    settings: dict[str, Any]

    def __call__(self, profile: Profile) -> CostModel:
        found = registry_of(from_plain(self.settings)).offline_step_cost(profile)
        return StepCost(profile.cost) if found is None else found[1]


def plugged_costs(settings: Settings, profile: Profile) -> tuple[str, PluggedCosts] | None:
    """Returns the name and the costs of the plugin that sets step costs; None without such a plugin."""
    found = registry_of(settings).offline_step_cost(profile)
    return None if found is None else (found[0], PluggedCosts(to_plain(settings)))
