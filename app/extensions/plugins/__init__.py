"""Plugins of third parties, as one extension."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from app.core.extensions import Extension, Position

if TYPE_CHECKING:
    from random import Random

    from app.core.api.fault import RequestFacts
    from app.core.base.metrics.instruments import Families
    from app.core.engine.profile import Profile
    from app.core.engine.request import EngineRequest, ScriptedReply
    from app.core.engine.step_cost import CostModel
    from app.core.extensions import ServerParts
    from app.core.server.http.context import RequestContext
    from app.core.server.http.fault import Fault
    from app.core.server.http.route import Route
    from app.core.server.middleware.stack import Middleware
    from app.extensions.plugins.registry import PluginRegistry
    from config import Settings


class Plugins(Extension):
    """Calls the hooks of plugins, and lists the plugins."""

    name = "plugins"
    order = 2  # plugins of users come behind the built-in extensions
    _decides_replies = False

    def __init__(self, parts: ServerParts) -> None:
        super().__init__(parts)
        self._registry: PluginRegistry | None = None
        self._fast_path_checks: Sequence[Callable[[Settings], bool]] = ()
        if not parts.settings.PLUGINS:
            return
        from app.extensions.plugins.registry import PluginRegistry

        self._registry = PluginRegistry(parts)
        self._fast_path_checks = self._registry.fast_path_checks()
        decides_replies = self._registry.overrides("reply", "reply_length")
        self._decides_replies = decides_replies and not parts.settings.engine.is_real
        self.reads_messages = self._decides_replies or self._registry.reads_messages

    @classmethod
    def prepare(cls, settings: Settings) -> None:
        """Calls all hooks once, before the workers do.

        Raises:
            ConfigError: A hook is invalid.
        """
        if settings.PLUGINS:
            from app.extensions.plugins.hook_check import check_hooks

            check_hooks(settings)

    def step_cost(self, profile: Profile) -> CostModel | None:
        """Returns the cost model of the first plugin that has one."""
        if self._registry is None:
            return None
        return self._registry.first_step_cost(profile)

    def reply(self) -> Callable[[EngineRequest, Random], ScriptedReply | None] | None:
        """Returns the first reply of a plugin."""
        if self._registry is None:
            return None
        return self._registry.reply()

    def reply_length(self) -> Callable[[EngineRequest, Random], int | None] | None:
        """Returns the first length of a plugin."""
        if self._registry is None:
            return None
        return self._registry.reply_length()

    def fault(self) -> Callable[[RequestFacts], Fault | None] | None:
        """Returns the first fault of a plugin."""
        if self._registry is None:
            return None
        return self._registry.fault()

    def keeps_fast_path(self, settings: Settings) -> bool:
        """Returns whether no plugin decides replies, and no plugin objects."""
        if self._decides_replies:
            return False
        return all(check(settings) for check in self._fast_path_checks)

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns the plugins' middleware."""
        if self._registry is None:
            return {}
        return self._registry.middleware()

    def routes(self) -> Mapping[str, Sequence[Route]]:
        """Returns the report of plugins, and the plugins' own routes."""
        from app.core.server.http.route import action

        blueprints: dict[str, Sequence[Route]] = {
            "plugins": [action("GET /admin/plugins", self._report)]
        }
        if self._registry is not None:
            blueprints |= self._registry.routes(self.parts.routes)
        return blueprints

    def _report(self, context: RequestContext) -> object:
        """The plugins, their settings, and the calls, failures and delays of each hook."""
        from config.plugin_modules import API

        if self._registry is None:
            return {"api": API, "plugins": []}
        return self._registry.report()

    def metrics(self) -> Sequence[Families]:
        """Returns the plugins' metric families."""
        if self._registry is None:
            return ()
        return self._registry.families()
