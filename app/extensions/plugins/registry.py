"""The plugins of a process: an instance of each, and guards around the results of their hooks.

`understudy plugins` lists extensions and plugins; `simulate`, `plan` and `fleet` use the step
costs and policies of plugins.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from random import Random
from typing import Any, Concatenate, NoReturn, ParamSpec, TypeVar

from app.core.api.fault import RequestFacts
from app.core.base.clock.clock import LiveClock
from app.core.base.clock.random_streams import Streams
from app.core.base.metrics.instruments import Families
from app.core.engine.profile import Profile
from app.core.engine.request import EngineRequest, ScriptedReply
from app.core.engine.step_cost import CostModel, StepCost
from app.core.extensions import Position, ServerParts
from app.core.server.http.fault import Fault
from app.core.server.http.route import Route
from app.core.server.middleware.stack import Middleware
from app.core.settings import settings_type
from app.extensions.plugins.api import Plugin
from app.extensions.plugins.guard import (
    Guard,
    GuardedMiddleware,
    GuardedPolicy,
    StepSeconds,
    checked_instance,
)
from app.extensions.plugins.policies import (
    AUTOSCALERS,
    ROUTING_POLICIES,
    AutoscalerStart,
    Decide,
    Look,
    Policy,
    PolicyMaker,
    Scores,
)
from config.declaration import ConfigError
from config.plugin_modules import API
from config.plugins import from_plain, to_plain
from config.settings import Settings
from config.validation import LiveSettings

P = ParamSpec("P")
T = TypeVar("T")
HOOKS = (
    "reply",
    "reply_length",
    "step_cost",
    "fault",
    "keeps_fast_path",
    "middleware",
    "routes",
    "metrics",
    "routing_policies",
    "autoscalers",
)
"""Members of `Plugin` that a plugin may override."""
PARAMETER = re.compile(r"(?<=/)\{[^/]*")
"""A part of a path that is a parameter."""


class PluginRegistry:
    """One instance of each plugin of `parts.settings`.

    Raises:
        ConfigError: a plugin cannot be made, or a hook fails; the message names both.
    """

    def __init__(self, parts: ServerParts) -> None:
        self._parts = parts
        self._plugins: dict[str, Plugin] = {}
        self.guards: dict[str, dict[str, Guard]] = {}
        """Plugin -> overridden hook -> guard."""
        for loaded in parts.settings.PLUGINS:
            self._add(loaded.name, loaded.extension, loaded.origin)

    def _add(self, name: str, kind: object, origin: str) -> None:
        if not (isinstance(kind, type) and issubclass(kind, Plugin)):
            raise ConfigError(
                f"plugin {name} ({origin}): EXTENSION must be a subclass of app.plugins.Plugin"
            )
        overridden = [hook for hook in HOOKS if getattr(kind, hook) is not getattr(Plugin, hook)]
        if not overridden and kind.Settings is None:
            raise ConfigError(
                f"plugin {name} ({origin}): {kind.__name__} does not override any hook"
            )
        with _as_config_error(name, "__init__"):
            self._plugins[name] = kind(self._parts)
        self.guards[name] = {hook: Guard(name, hook) for hook in overridden}

    def overrides(self, *hooks: str) -> bool:
        """Returns whether a plugin has one of these hooks."""
        return any(not guards.keys().isdisjoint(hooks) for guards in self.guards.values())

    @property
    def reads_messages(self) -> bool:
        """True if engine requests must carry the texts of their messages."""
        return any(plugin.reads_messages for plugin in self._plugins.values())

    def _collect(
        self, hook: str, convert: Callable[[Guard, Any], T], *arguments: object
    ) -> list[T]:
        """Calls `hook` of each plugin that has it; converts the results other than None."""
        converted = []
        for name, plugin in self._plugins.items():
            guard = self.guards[name].get(hook)
            if guard is None:
                continue
            with _as_config_error(name, hook):
                result = getattr(plugin, hook)(*arguments)
                if result is not None:
                    converted.append(convert(guard, result))
                    guard.in_use = True
        return converted

    def reply(self) -> Callable[[EngineRequest, Random], ScriptedReply | None] | None:
        """Returns the source of replies: the first reply of a plugin."""
        return first_result(self._collect("reply", Guard.reply))

    def reply_length(self) -> Callable[[EngineRequest, Random], int | None] | None:
        """Returns the source of lengths: the first length of a plugin."""
        return first_result(self._collect("reply_length", Guard.length))

    def fault(self) -> Callable[[RequestFacts], Fault | None] | None:
        """Returns the source of faults: the first fault of a plugin."""
        return first_result(self._collect("fault", Guard.fault))

    def fast_path_checks(self) -> list[Callable[[Settings], bool]]:
        """Returns the plugins' decisions about the fast path."""
        checks = []
        for name, plugin in self._plugins.items():
            guard = self.guards[name].get("keeps_fast_path")
            if guard is not None:
                guard.in_use = True
                checks.append(guard.keeps_fast_path(plugin.keeps_fast_path))
        return checks

    def step_cost(
        self, profile: Profile, otherwise: StepSeconds | None = None
    ) -> tuple[str, CostModel] | None:
        """Returns name and cost model of the first plugin that has one.

        Where it fails, `otherwise` is asked, by default the profile.
        """
        usual = otherwise or StepCost(profile.cost).seconds

        def convert(guard: Guard, cost: CostModel) -> tuple[str, CostModel]:
            return guard.plugin, guard.step_cost(cost, usual)

        return next(iter(self._collect("step_cost", convert, profile)), None)

    def first_step_cost(self, profile: Profile) -> CostModel | None:
        """Returns the cost model of the first plugin that has one."""
        named_cost = self.step_cost(profile)
        if named_cost is None:
            return None
        _, cost = named_cost
        return cost

    def middleware(self) -> dict[Position, list[Middleware]]:
        """Returns middleware by position, the outermost first."""
        added: dict[Position, list[Middleware]] = {}

        def convert(guard: Guard, by_position: Mapping[Position, Sequence[Middleware]]) -> None:
            for position, middleware in by_position.items():
                for member in middleware:
                    guarded = GuardedMiddleware(member, guard)
                    self._parts.live.subscribe(guarded.on_settings)
                    added.setdefault(Position(position), []).append(guarded)

        self._collect("middleware", convert)
        return added

    def routes(self, existing: Callable[[], Iterator[Route]]) -> dict[str, list[Route]]:
        """Returns blueprints with their routes.

        Raises:
            ConfigError: A route exists already.
        """
        seen = {pair for route in existing() for pair in _answered(route)}
        blueprints: dict[str, list[Route]] = {}

        def convert(guard: Guard, by_blueprint: Mapping[str, Sequence[Route]]) -> None:
            for blueprint, routes in by_blueprint.items():
                guarded = [_checked_route(guard, route, seen) for route in routes]
                blueprints[f"plugin_{guard.plugin}_{blueprint}"] = guarded

        self._collect("routes", convert)
        return blueprints

    def families(self) -> list[Families]:
        """Returns the metric families."""

        def convert(guard: Guard, families: Sequence[Families]) -> list[Families]:
            return [guard.families(render) for render in families]

        return [*chain.from_iterable(self._collect("metrics", convert))]

    def policies(self) -> dict[str, PolicyMaker]:
        """Returns routing policies of a fleet, by name.

        Raises:
            ConfigError: A name is in use.
        """
        return self._named("routing_policies", "routing", ROUTING_POLICIES, _guarded_policy)

    def autoscalers(self) -> dict[str, AutoscalerStart]:
        """Returns autoscaling policies, by name.

        Raises:
            ConfigError: A name is in use.
        """
        return self._named("autoscalers", "autoscaling", AUTOSCALERS, _guarded_decisions)

    def _named(
        self,
        hook: str,
        kind: str,
        built_in: Container[str],
        guarded: Callable[Concatenate[Guard, Any, P], T],
    ) -> dict[str, Callable[P, T]]:
        """Returns the policies that `hook` of each plugin returns, each called by `guarded`."""
        policies: dict[str, Callable[P, T]] = {}

        def convert(guard: Guard, makers: Mapping[str, object]) -> None:
            for name, make in makers.items():
                if name in built_in or name in policies:
                    raise ConfigError(
                        f"plugin {guard.plugin}: the {kind} policy {name} already exists"
                    )
                policies[name] = partial(guarded, guard, make)

        self._collect(hook, convert)
        return policies

    def report(self) -> dict[str, object]:
        """Returns the body of GET /admin/plugins."""
        settings = self._parts.live.current
        plugins = []
        for loaded in settings.PLUGINS:
            hooks = {}
            for hook, guard in self.guards[loaded.name].items():
                hooks[hook] = guard.report()
            shown_settings = {}
            for row in settings.table.rows:
                if row.group == loaded.group:
                    shown_settings[row.name] = row.shown(row.value(settings))
            plugins.append(
                {
                    "name": loaded.name,
                    "version": loaded.version or None,
                    "api": API,
                    "origin": loaded.origin,
                    "hooks": hooks,
                    "settings": shown_settings,
                }
            )
        return {"api": API, "plugins": plugins}


def registry_of(settings: Settings) -> PluginRegistry:
    """Returns the plugins of a process without a server. Raises ConfigError."""
    streams = Streams(settings.reply.seed, 0)
    return PluginRegistry(ServerParts(LiveSettings(settings), LiveClock(), streams))


@contextmanager
def _as_config_error(plugin: str, hook: str) -> Iterator[None]:
    """Converts an error in the block into a ConfigError of one line, with plugin and hook."""
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"plugin {plugin}: hook {hook} failed at startup: {reason}") from None


def _checked_route(guard: Guard, route: Route, seen: set[tuple[str, str]]) -> Route:
    """Returns a guarded route, and adds it to `seen`.

    Raises:
        ConfigError: The route exists already.
    """
    plugin = guard.plugin
    answered = _answered(route)
    if not route.path.startswith("/"):
        raise ConfigError(f"plugin {plugin}: the path {route.path!r} must begin with a slash")
    if answered & seen:
        shown = f"{route.methods[0]} {route.path}"
        raise ConfigError(f"plugin {plugin}: the route {shown} already exists")
    seen |= answered
    return guard.route(route)


def _answered(route: Route) -> set[tuple[str, str]]:
    """Returns methods and paths; names of parameters make no difference."""
    path = PARAMETER.sub("{}", route.path)
    return {(method, path) for method in route.methods}


def _guarded_policy(guard: Guard, make: PolicyMaker, scores: Scores, rng: Random) -> Policy:
    with _as_config_error(guard.plugin, guard.hook):
        return GuardedPolicy(make(scores, rng), guard, rng)


def _guarded_decisions(guard: Guard, start: AutoscalerStart, pods: int) -> Decide:
    """Returns the decisions of a run. The first failure ends the run."""
    with _as_config_error(guard.plugin, guard.hook):
        decide = start(pods)

    def checked(look: Look) -> int:
        return checked_instance(decide(look), int)

    return guard.wrap(checked, partial(_fail, guard.hook), refusals=())


def _fail(hook: str, *args: object) -> NoReturn:
    raise ConfigError(f"a plugin's {hook} hook failed; see the previous line for the reason")


# What other processes get: functions of settings as JSON types, which can be pickled.


def plugged_costs(
    settings: Settings, profile: Profile
) -> tuple[str, Callable[[Profile], CostModel]] | None:
    """Returns the name and cost models of the plugin that sets step costs; None without one."""
    named_cost = registry_of(settings).step_cost(profile, partial(_fail, "step_cost"))
    if named_cost is None:
        return None
    plugin, _ = named_cost
    return plugin, partial(_plugged_cost, to_plain(settings))


def _plugged_cost(plain: dict[str, Any], profile: Profile) -> CostModel:
    registry = registry_of(from_plain(plain, settings_type()))
    named_cost = registry.step_cost(profile, partial(_fail, "step_cost"))
    if named_cost is None:
        return StepCost(profile.cost)
    _, cost = named_cost
    return cost


def plugged_policies(settings: Settings) -> Mapping[str, PolicyMaker]:
    """Returns the routing policies of the plugins in the settings, by name."""
    return registry_of(settings).policies()


def plugged_autoscalers(settings: Settings) -> dict[str, AutoscalerStart]:
    """Returns the autoscaling policies of the plugins in the settings, by name."""
    plain = to_plain(settings)
    names = registry_of(settings).autoscalers()
    return {name: partial(_plugged_autoscaler, plain, name) for name in names}


def _plugged_autoscaler(plain: dict[str, Any], name: str, pods: int) -> Decide:
    return registry_of(from_plain(plain, settings_type())).autoscalers()[name](pods)


def first_result(functions: Sequence[Callable[P, T | None]]) -> Callable[P, T | None] | None:
    """Returns a function that returns the first result of `functions` other than None.

    Returns None without functions.
    """
    if not functions:
        return None

    def ask_all(*args: P.args, **kwargs: P.kwargs) -> T | None:
        for function in functions:
            result = function(*args, **kwargs)
            if result is not None:
                return result
        return None

    return ask_all
