"""The plugins of a process: pluggy finds their hooks; each hook is called once, at the start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

from pluggy import HookCaller, HookImpl, PluginManager, PluginValidationError

from app.base.clock.streams import Streams
from app.base.metrics.exposition import Families
from app.engine.core.request import EngineRequest
from app.engine.core.step_cost import CostModel, StepCost
from app.engine.simulated.modes import LengthSource, ReplySource
from app.lab.fleet.routing import Incoming, PolicyMaker, Scores
from app.lab.load.policies import POLICIES
from app.plugins import checks
from app.plugins import hooks as specifications
from app.plugins.checks import Guard, nothing, start_fails
from app.plugins.hooks import HOOKS, PROJECT, PluginHost
from app.serving.faults.injector import FaultSource
from app.serving.http.context import RequestContext
from app.serving.http.errors import internal
from app.serving.http.response import Response
from app.serving.http.route import Route
from app.serving.middleware.stack import Middleware
from config.declaration import ConfigError
from config.plugins import API
from config.profile import Profile
from config.settings import Plugin, Settings
from config.validation import suggestion


class PluginRegistry:
    """Results of the plugins' hooks. ConfigError, with the plugin's name, for a wrong hook.

    `streams` creates a named random stream; `now` gives monotonic seconds.
    """

    def __init__(
        self,
        plugins: Sequence[Plugin],
        current: Callable[[], Settings],
        streams: Callable[[str], Random],
        now: Callable[[], float],
    ) -> None:
        self._plugins = plugins
        self._current = current
        self._manager = manager_of(plugins)
        self._hosts = {
            each.name: PluginHost(each, current, streams(f"plugin {each.name}"), now) for each in plugins
        }
        self._guards: dict[tuple[str, str], Guard] = {}
        """(plugin, hook) -> guard, for hooks whose result was not None."""

    def implements(self, *names: str) -> bool:
        return any(self._implementations(name) for name in names)

    def implemented(self) -> dict[str, list[str]]:
        """Plugin's name -> names of its hooks."""
        by_hook = {name: {found.plugin_name for found in self._implementations(name)} for name in HOOKS}
        return {
            plugin.name: [name for name, plugins in by_hook.items() if plugin.name in plugins]
            for plugin in self._plugins
        }

    def replies(self, worded: checks.Worded) -> list[ReplySource]:
        """Sources of replies, in the order of their calls."""
        given = self._given("reply")
        return [guard.wrap(checks.reply(hook, worded), nothing, may_refuse=True) for hook, guard in given]

    def length(self) -> LengthSource | None:
        """Returns a function for the first length that a plugin gives; None where no plugin has the hook."""
        given = self._given("length")
        sources = [guard.wrap(checks.length(hook), nothing, may_refuse=True) for hook, guard in given]

        def first(request: EngineRequest, rng: Random) -> int | None:
            lengths = (source(request, rng) for source in sources)
            return next((length for length in lengths if length is not None), None)

        return first if sources else None

    def faults(self) -> list[FaultSource]:
        """Sources of faults, in the order of their calls."""
        given = self._given("fault")
        return [at.wrap(checks.fault(hook, at.plugin), nothing, may_refuse=True) for hook, at in given]

    def step_cost(self, profile: Profile) -> CostModel | None:
        """Cost model of live steps, from the first plugin with the hook; None without such a plugin.

        After a failure of the plugin, a step has the profile's cost.
        """
        for cost, guard in self._given("step_cost", profile=profile):
            usual = StepCost(profile.cost).seconds
            return PluginCost(guard.wrap(checks.step_seconds(cost), usual))
        return None

    def offline_step_cost(self, profile: Profile) -> tuple[str, CostModel] | None:
        """Name of the plugin, and its cost model for `simulate`; a failed step is a ConfigError."""
        for cost, guard in self._given("step_cost", profile=profile):
            checked = start_fails(guard.plugin, "step_cost", when="")(checks.step_seconds(cost))
            return guard.plugin, PluginCost(checked)
        return None

    def middleware(self) -> list[Middleware]:
        """Middleware around requests, the outermost first."""
        made: list[Middleware] = []
        for given, guard in self._given("middleware"):
            many = given if isinstance(given, Sequence) else (given,)
            made += [_guarded(one, guard) for one in many]
        return made

    def routes(self, taken: Callable[[], Iterator[Route]]) -> Iterator[tuple[str, list[Route]]]:
        """Yields blueprint names with their routes. ConfigError for a route that is in `taken`."""
        for given, guard in self._given("routes"):
            added = [_guarded_route(route, guard) for route in given]
            _check_free(added, taken(), guard.plugin)
            yield f"plugin_{guard.plugin}", added

    def families(self) -> list[Families]:
        return [at.wrap(checks.families(hook, at.plugin), str) for hook, at in self._given("metrics")]

    def policies(self) -> dict[str, PolicyMaker]:
        """Name -> routing policy of a fleet. ConfigError for a name in use."""
        found: dict[str, PolicyMaker] = {}
        for given, guard in self._given("routing"):
            for name, make in given.items():
                if name in found or name in POLICIES:
                    raise ConfigError(f"plugin {guard.plugin}: routing policy {name} is there already")
                found[name] = partial(GuardedPolicy, make, guard)
        return found

    def report(self) -> dict[str, object]:
        """Body of GET /admin/plugins."""
        implemented = self.implemented()
        return {"api": API, "plugins": [self._report(each, implemented[each.name]) for each in self._plugins]}

    def _report(self, plugin: Plugin, hooks: Sequence[str]) -> dict[str, object]:
        settings = self._current()
        own = [row for row in settings.table.rows if row.group == plugin.group]
        guards = {name: self._guards.get((plugin.name, name)) for name in hooks}
        counted = {
            name: {"in_use": guard is not None, **(guard or Guard(plugin.name, name)).report()}
            for name, guard in guards.items()
        }
        about = {"name": plugin.name, "version": plugin.version or None, "api": API, "origin": plugin.origin}
        return {
            **about,
            "hooks": counted,
            "settings": {row.name: row.shown(row.value(settings)) for row in own},
        }

    def _implementations(self, name: str) -> list[HookImpl]:
        """Implementations of a hook, in pluggy's call order."""
        caller: HookCaller = getattr(self._manager.hook, name)
        return caller.get_hookimpls()[::-1]

    def _given(self, name: str, **more: object) -> Iterator[tuple[Any, Guard]]:
        """Calls the hooks of this name; yields results other than None, and guards. May raise ConfigError."""
        wanted, fits = checks.FORMS[name]
        for found in self._implementations(name):
            plugin = found.plugin_name
            known = {"host": self._hosts[plugin], **more}
            with start_fails(plugin, name):
                given = found.function(*(known[argument] for argument in found.argnames))
            if given is None:
                continue
            if not fits(given):
                gave = type(given).__name__
                raise ConfigError(f"plugin {plugin}: hook {name} gave {gave}, which is not {wanted}")
            yield given, self._guards.setdefault((plugin, name), Guard(plugin, name))


def registry_of(settings: Settings) -> PluginRegistry:
    """The plugins of a command. Raises ConfigError as `PluginRegistry`."""
    streams = Streams(settings.reply.seed, 0)
    return PluginRegistry(settings.PLUGINS, lambda: settings, streams, time.monotonic)


class PluginCost:
    def __init__(self, seconds: checks.StepSeconds) -> None:
        self.seconds = seconds


def _guarded(middleware: Middleware, guard: Guard) -> Middleware:
    """Guards a plugin's middleware. A failed `begin` refuses the request, as its check did not happen."""
    begin, end = partial(checks.begin, middleware), partial(checks.end, middleware)
    vars(middleware)["begin"] = guard.wrap(begin, partial(_refuse, guard), may_refuse=True)
    vars(middleware)["end"] = guard.wrap(end, nothing)
    return middleware


def _refuse(guard: Guard, context: RequestContext) -> Response:
    """Raises the error response for a request that a plugin failed to handle."""
    raise internal(f"The plugin {guard.plugin} failed to handle the request.")


def _guarded_route(route: Route, guard: Guard) -> Route:
    """Guards a plugin's route, and keeps it off the fast path. ConfigError for a path without `/`."""
    if not route.path.startswith("/"):
        raise ConfigError(f"plugin {guard.plugin}: path {route.path!r} of a route must begin with a slash")
    handle = guard.wrap(checks.handler(route.handle), partial(_refuse, guard), may_refuse=True)
    handle.__doc__ = route.handle.__doc__
    return replace(route, handle=handle, plain=None)


def _check_free(added: Sequence[Route], taken: Iterator[Route], plugin: str) -> None:
    """Raises ConfigError for a duplicate route; names of path parameters do not matter."""
    seen = {pair for route in taken for pair in _answered(route)}
    for route in added:
        for method, path in _answered(route):
            if (method, path) in seen:
                raise ConfigError(f"plugin {plugin}: route {method} {route.path} is there already")
            seen.add((method, path))


def _answered(route: Route) -> list[tuple[str, str]]:
    parts = ["{}" if part.startswith("{") else part for part in route.path.split("/")]
    return [(method, "/".join(parts)) for method in route.methods]


class GuardedPolicy:
    """A plugin's routing policy. After a failure, the request goes to a random pod."""

    def __init__(self, make: PolicyMaker, guard: Guard, scores: Scores, rng: Random) -> None:
        """Raises ConfigError where the policy cannot be created."""
        with start_fails(guard.plugin, "routing"):
            inner = make(scores, rng)
        self._inner, self._rng, self._failures = inner, rng, 0

        def chosen(incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
            pod = inner.choose(incoming, pods, in_flight)
            if pod not in pods:
                raise ValueError(f"chose {pod!r}, which is none of the pods")
            return pod

        self.choose = guard.wrap(chosen, self._by_chance)

    @property
    def fallbacks(self) -> int:
        """Requests that the policy counts as fallbacks, plus failures of the policy."""
        return self._failures + int(getattr(self._inner, "fallbacks", 0))

    def _by_chance(self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
        self._failures += 1
        return self._rng.choice(pods)


def manager_of(plugins: Sequence[Plugin]) -> PluginManager:
    """pluggy's manager of these plugins. ConfigError for an unknown hook, or wrong arguments."""
    manager = PluginManager(PROJECT)
    manager.add_hookspecs(specifications)
    for plugin in reversed(plugins):  # pluggy calls the plugin registered last first
        named = f"plugin {plugin.name} ({plugin.origin})"
        try:
            manager.register(plugin.hooks, plugin.name)
        except PluginValidationError as error:
            raise ConfigError(f"{named}: {str(error).splitlines()[-1]}") from None
        callers = manager.get_hookcallers(plugin.hooks) or []
        if not callers and plugin.settings is None:
            raise ConfigError(f"{named}: has no hooks: no function of it is marked with @hookimpl")
        for caller in callers:
            if not caller.has_spec():
                hint = suggestion(caller.name, names=HOOKS)
                raise ConfigError(f"{named}: unknown hook {caller.name!r}{hint}")
            if any(found.wrapper or found.hookwrapper for found in caller.get_hookimpls()):
                raise ConfigError(f"{named}: hook {caller.name}: wrappers are not called")
    return manager
