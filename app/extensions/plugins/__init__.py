"""Plugins of third parties, as one extension."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from app.core.extensions import Command, Extension, Position

if TYPE_CHECKING:
    from random import Random

    from app.base.metrics.instruments import Families
    from app.core.extensions import ServerParts
    from app.engine.core.request import EngineRequest, Reply, ScriptedReply
    from app.engine.core.step_loop import CostModel
    from app.lab.fleet.routing import PolicyMaker
    from app.lab.load.autoscale import AutoscalerStart
    from app.plugins.registry import PluginRegistry
    from app.serving.api.fault import Fault, RequestFacts
    from app.serving.http.context import RequestContext
    from app.serving.http.route import Route
    from app.serving.middleware.stack import Middleware
    from config import Settings
    from config.profile import Profile


class Plugins(Extension):
    """Calls the hooks of plugins, and lists the plugins."""

    name = "plugins"

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        registry = self._registry
        decides_replies = (
            registry is not None
            and not parts.settings.engine.is_real
            and registry.implements("reply", "length")
        )
        self.reads_messages = decides_replies

    @classmethod
    def prepare(cls, settings: Settings) -> None:
        """Calls all hooks once, before the workers do. Raises ConfigError for a wrong hook."""
        if settings.PLUGINS:
            from app.core.application import build, tokenizer_of
            from app.core.built_in import enabled_extensions

            build(settings, tokenizer_of(settings), enabled_extensions(settings), rank=0)

    @classmethod
    def commands(cls) -> Mapping[str, Command]:
        """Returns the command that lists plugins."""
        about = "tell which plugins there are, their hooks and settings"
        return {"plugins": Command(_run_command, about)}

    @cached_property
    def _registry(self) -> PluginRegistry | None:
        settings = self.parts.settings
        if not settings.PLUGINS:
            return None
        from app.plugins.registry import PluginRegistry  # imports pluggy

        return PluginRegistry(
            settings.PLUGINS, self._current_settings, self.parts.streams, self.parts.clock.now
        )

    def _current_settings(self) -> Settings:
        return self.parts.live.current

    def step_cost(self, profile: Profile) -> CostModel | None:
        """Returns the cost model of the first plugin that has one."""
        named_cost = None if self._registry is None else self._registry.step_cost(profile)
        return None if named_cost is None else named_cost[1]

    def reply_sources(
        self, worded: Callable[[EngineRequest, ScriptedReply], Reply]
    ) -> Sequence[Callable[[EngineRequest, Random], Reply | None]]:
        """Returns the plugins' replies."""
        return () if self._registry is None else self._registry.replies(worded)

    def reply_length(self) -> Callable[[EngineRequest, Random], int | None] | None:
        """Returns the plugins' lengths of replies."""
        return None if self._registry is None else self._registry.length()

    def fault_sources(self) -> Sequence[Callable[[RequestFacts], Fault | None]]:
        """Returns the plugins' faults."""
        return () if self._registry is None else self._registry.faults()

    def keeps_fast_path(self, settings: Settings) -> bool:
        """Returns whether no plugin decides replies."""
        return not self.reads_messages

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns the plugins' middleware."""
        if self._registry is None:
            return {}
        return {Position.AUTHENTICATED: self._registry.middleware()}

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the report of plugins, and the plugins' own routes."""
        from app.serving.api.admin.server import action

        blueprints: dict[str, Sequence[Route]] = {
            "plugins": [action("GET /admin/plugins", self._report)]
        }
        if self._registry is not None:
            blueprints |= dict(self._registry.routes(self.parts.routes))
        return blueprints

    def _report(self, context: RequestContext) -> object:
        """The plugins, their settings, and the calls, failures and delays of each hook."""
        from config.plugins import API

        if self._registry is None:
            return {"api": API, "plugins": []}
        return self._registry.report()

    def metrics(self) -> Sequence[Families]:
        """Returns the plugins' metric families."""
        return () if self._registry is None else self._registry.families()


def step_costs(
    settings: Settings, profile: Profile
) -> tuple[str, Callable[[Profile], CostModel]] | None:
    """Returns the name of the plugin that sets step costs, and its cost models; None without."""
    if not settings.PLUGINS:
        return None
    from app.plugins.registry import plugged_costs

    return plugged_costs(settings, profile)


def autoscalers(settings: Settings) -> Mapping[str, AutoscalerStart]:
    """Returns the autoscaling policies of plugins, by name."""
    if not settings.PLUGINS:
        return {}
    from app.plugins.registry import plugged_autoscalers

    return plugged_autoscalers(settings)


def routing_policies(settings: Settings) -> Mapping[str, PolicyMaker]:
    """Returns the routing policies of plugins, by name."""
    if not settings.PLUGINS:
        return {}
    from app.plugins.registry import plugged_policies

    return plugged_policies(settings)


def _run_command(argv: Sequence[str]) -> int:
    if {"--help", "-h"} & {*argv}:  # works without pluggy, too
        from config.declaration import COMMAND

        print(f"usage: {COMMAND} plugins [--plugin NAME] [--setting value ...]\n")
        print(
            "List the plugins of a server with these settings, and their hooks (docs/plugins.md)."
        )
        return 0
    from app.plugins.registry import run

    return run(argv)


EXTENSION = Plugins
