"""The plugins of a process: their hooks, looked at by pluggy, each called once and made a plain function."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from random import Random
from types import MappingProxyType
from typing import Any

from pluggy import HookCaller, HookImpl, PluginManager, PluginValidationError

from app.engine.request import EngineRequest
from app.engine.step_cost import CostModel
from app.faults.injector import FaultSource
from app.fleet.routing import PolicyMaker
from app.http.route import Route
from app.load.policies import POLICIES
from app.metrics.exposition import Families
from app.middleware.stack import Middleware
from app.plugins import hooks as specifications
from app.plugins.costs import CheckedCost, GuardedCost
from app.plugins.guard import Guard
from app.plugins.hooks import HOOKS, PROJECT
from app.plugins.host import PluginHost
from app.plugins.replies import Worded, length_source, reply_source
from app.plugins.routing import guarded_policy
from app.plugins.serving import GuardedMiddleware, check_free, fault_source, guarded_families, guarded_route
from app.simulated.modes import LengthSource, ReplySource
from config.declaration import ConfigError
from config.plugins import API
from config.profile import Profile
from config.settings import Plugin, Settings
from config.validation import suggestion


def _is_list_of(kind: type) -> Callable[[object], bool]:
    return lambda given: isinstance(given, Sequence) and all(isinstance(one, kind) for one in given)


FORMS: Mapping[str, tuple[str, Callable[[object], bool]]] = MappingProxyType(
    {
        **dict.fromkeys(("reply", "length", "fault", "metrics"), ("a function", callable)),
        "step_cost": ("a CostModel", lambda given: callable(getattr(given, "seconds", None))),
        "middleware": (
            "a Middleware, or a list of some",
            lambda given: isinstance(given, Middleware) or _is_list_of(Middleware)(given),
        ),
        "routes": ("a list of Routes", _is_list_of(Route)),
        "routing": ("a mapping of policies", lambda given: isinstance(given, Mapping)),
    }
)
"""What each hook may give besides None, in words, and whether something is that."""


class PluginRegistry:
    """What the plugins of `settings` add. ConfigError, with the plugin's name, for a wrong hook.

    `streams` makes a stream of randomness of a name, `now` gives monotonic seconds.
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
        """By plugin and hook: those that have given something to be called."""

    def implements(self, *names: str) -> bool:
        """Whether any plugin has one of these hooks."""
        return any(self._implementations(name) for name in names)

    def implemented(self) -> dict[str, list[str]]:
        """Name of each plugin to its hooks."""
        by_hook = {name: {found.plugin_name for found in self._implementations(name)} for name in HOOKS}
        return {
            plugin.name: [name for name, whose in by_hook.items() if plugin.name in whose]
            for plugin in self._plugins
        }

    def replies(self, worded: Worded) -> list[ReplySource]:
        """Who is asked, one after the other, what is said."""
        return [reply_source(hook, guard, worded) for hook, guard in self._given("reply")]

    def length(self) -> LengthSource | None:
        """Who is asked how long a reply is; None where nobody is."""
        sources = [length_source(hook, guard) for hook, guard in self._given("length")]

        def first(request: EngineRequest, rng: Random) -> int | None:
            lengths = (source(request, rng) for source in sources)
            return next((length for length in lengths if length is not None), None)

        return first if sources else None

    def faults(self) -> list[FaultSource]:
        """Who is asked what goes wrong."""
        return [fault_source(hook, guard) for hook, guard in self._given("fault")]

    def step_cost(self, profile: Profile) -> CostModel | None:
        """What a live step costs; None where no plugin says. The first plugin that does decides alone."""
        for cost, guard in self._given("step_cost", profile=profile):
            return GuardedCost(cost, guard, profile)
        return None

    def offline_step_cost(self, profile: Profile) -> CheckedCost | None:
        """The same off line."""
        for cost, guard in self._given("step_cost", profile=profile):
            return CheckedCost(cost, guard.plugin)
        return None

    def middleware(self) -> list[Middleware]:
        """What is done around requests, the outermost first."""
        made: list[Middleware] = []
        for given, guard in self._given("middleware"):
            many = given if isinstance(given, Sequence) else (given,)
            made += [GuardedMiddleware(one, guard) for one in many]
        return made

    def routes(self, taken: Callable[[], Iterator[Route]]) -> Iterator[tuple[str, list[Route]]]:
        """Name of a blueprint and its routes. ConfigError for a route that is among those `taken`."""
        for given, guard in self._given("routes"):
            added = [guarded_route(route, guard) for route in given]
            check_free(added, taken(), guard.plugin)
            yield f"plugin_{guard.plugin}", added

    def families(self) -> list[Families]:
        """Texts of metric families."""
        return [guarded_families(hook, guard) for hook, guard in self._given("metrics")]

    def policies(self) -> dict[str, PolicyMaker]:
        """Routing policies of a fleet, by name. ConfigError for a name that is taken."""
        found: dict[str, PolicyMaker] = {}
        for given, guard in self._given("routing"):
            for name, make in given.items():
                if name in found or name in POLICIES:
                    raise ConfigError(f"plugin {guard.plugin}: routing policy {name} is there already")
                found[name] = partial(guarded_policy, make, guard)
        return found

    def report(self) -> dict[str, object]:
        """What GET /admin/plugins tells."""
        return {"api": API, "plugins": [self._report_of(plugin) for plugin in self._plugins]}

    def _report_of(self, plugin: Plugin) -> dict[str, object]:
        settings = self._current()
        own = [row for row in settings.table.rows if row.group == plugin.group]
        idle = Guard(plugin.name, "")
        return {
            "name": plugin.name,
            "version": plugin.version or None,
            "api": API,
            "origin": plugin.origin,
            "hooks": {
                name: {"in_use": (plugin.name, name) in self._guards}
                | self._guards.get((plugin.name, name), idle).report()
                for name in self.implemented()[plugin.name]
            },
            "settings": {row.name: row.shown(row.value(settings)) for row in own},
        }

    def _implementations(self, name: str) -> list[HookImpl]:
        """All of a hook, in the order in which pluggy would call them."""
        caller: HookCaller = getattr(self._manager.hook, name)
        return caller.get_hookimpls()[::-1]

    def _given(self, name: str, **more: object) -> Iterator[tuple[Any, Guard]]:
        """What the hooks of this name give for this start. ConfigError for one that raises."""
        for found in self._implementations(name):
            plugin = found.plugin_name
            known = {"host": self._hosts[plugin], **more}
            try:
                given = found.function(*(known[argument] for argument in found.argnames))
            except ConfigError:
                raise
            except (Exception, SystemExit) as error:
                reason = f"{type(error).__name__}: {error}"
                raise ConfigError(f"plugin {plugin}: hook {name} failed at the start: {reason}") from None
            wanted, fits = FORMS[name]
            if given is not None and not fits(given):
                gave = type(given).__name__
                raise ConfigError(f"plugin {plugin}: hook {name} gave {gave}, which is not {wanted}")
            if given is not None:
                yield given, self._guards.setdefault((plugin, name), Guard(plugin, name))


def manager_of(plugins: Sequence[Plugin]) -> PluginManager:
    """pluggy's manager of these plugins. ConfigError for a hook that there is not, or of other arguments."""
    manager = PluginManager(PROJECT)
    manager.add_hookspecs(specifications)
    for plugin in reversed(plugins):  # who is registered last is called first
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
                raise ConfigError(
                    f"{named}: unknown hook {caller.name!r}{suggestion(caller.name, names=HOOKS)}"
                )
            if any(found.wrapper or found.hookwrapper for found in caller.get_hookimpls()):
                raise ConfigError(f"{named}: hook {caller.name}: wrappers are not called")
    return manager
