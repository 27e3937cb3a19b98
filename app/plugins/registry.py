"""The plugins of a process: pluggy finds their hooks; each hook is called once, at the start.

A `Guard` stands around what a hook gave. Results that make no sense raise TypeError or ValueError there.
`python -m app plugins` lists plugins, and `simulate` uses their step costs.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from math import isfinite
from random import Random
from types import UnionType
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec
from gevent._hub_local import get_hub_if_exists
from msgspec import Struct
from pluggy import HookImpl, PluginManager, PluginValidationError
from prometheus_client.parser import text_string_to_metric_families

from app.base.clock.streams import Streams
from app.base.metrics.exposition import Families
from app.engine.core.batch import Batch
from app.engine.core.errors import EngineError
from app.engine.core.reply import Reply
from app.engine.core.request import EngineRequest, ScriptedReply
from app.engine.core.timing import CostModel, StepCost
from app.engine.simulated.modes import LengthSource, ReplySource
from app.lab.fleet.routing import Incoming, PolicyMaker, Scores
from app.lab.load.policies import POLICIES
from app.plugins import hooks as specifications
from app.plugins.hooks import HOOKS, PROJECT, FaultHook, LengthHook, MetricsHook, PluginHost, ReplyHook
from app.serving.faults.fault import Damage, Fault, RequestFacts
from app.serving.faults.injector import FaultSource
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, internal
from app.serving.http.response import Response
from app.serving.http.route import Route
from app.serving.middleware.stack import Middleware
from config.declaration import ConfigError
from config.loader import load
from config.plugins import API, from_plain, to_plain
from config.profile import Profile
from config.settings import Plugin, Settings
from config.validation import suggestion

P = ParamSpec("P")
T = TypeVar("T")
Worded = Callable[[EngineRequest, ScriptedReply], Reply]
"""Converts a scripted reply to tokens."""
LONGEST_HOLD_S = 0.02
"""Longest hold of the event loop by a hook without a warning, in seconds; streams are late by as much."""
LONGEST_WAIT_S = 1e9
"""Longest wait in a plugin's reply or fault, in seconds: about 30 years, far below overflow."""
log = logging.getLogger(__name__)


class Guard:
    """Counters of one hook of one plugin. The first error and the first long hold are logged."""

    def __init__(self, plugin: str, hook: str) -> None:
        self.plugin = plugin
        self.hook = hook
        self.calls = self.errors = self.long_holds = 0
        self.longest_hold_s = 0.0

    def wrap(
        self,
        function: Callable[P, T],
        otherwise: Callable[P, T],
        refusals: tuple[type[Exception], ...] = (ApiError, EngineError),
    ) -> Callable[P, T]:
        """Wraps `function` for the server; `otherwise` replaces the result of a failed call.

        Errors in `refusals` refuse a request: they are raised, and are no failures.
        """

        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            self.calls += 1
            loop_s, begun_s = _loop_s(), time.perf_counter()
            try:
                return function(*args, **kwargs)
            except refusals:
                raise
            except (Exception, SystemExit) as error:  # also gunicorn's abort of a busy worker
                self.errors += 1
                if self.errors == 1:
                    text = "plugin %s: hook %s failed; GET /admin/plugins counts how often"
                    log.error(text, self.plugin, self.hook, exc_info=error)
            finally:
                # If the loop turned during the call, only the time since that turn counts.
                self._held(time.perf_counter() - begun_s - (_loop_s() - loop_s))
            return otherwise(*args, **kwargs)

        return guarded

    def _held(self, seconds: float) -> None:
        self.longest_hold_s = max(self.longest_hold_s, seconds)
        self.long_holds += seconds > LONGEST_HOLD_S
        if seconds > LONGEST_HOLD_S and self.long_holds == 1:
            text = "plugin %s: hook %s held the event loop for %.0f ms, in which nobody was served"
            log.warning(text, self.plugin, self.hook, seconds * 1000)

    def report(self) -> dict[str, float]:
        """Returns the counters for GET /admin/plugins."""
        return {
            "calls": self.calls,
            "errors": self.errors,
            "long_holds": self.long_holds,
            "longest_hold_ms": round(self.longest_hold_s * 1000, 3),
        }

    # Each method wraps what one hook gave.

    def reply(self, hook: ReplyHook, worded: Worded) -> ReplySource:
        """A text becomes a `ScriptedReply`, which `worded` converts to tokens."""

        def source(request: EngineRequest, rng: Random) -> Reply | None:
            given = hook(request, rng)
            script = ScriptedReply(text=given) if isinstance(given, str) else given
            if script is None:
                return None
            _check(script, ScriptedReply)
            script = msgspec.convert(msgspec.to_builtins(script), ScriptedReply)
            waits = (script.first_token_s, script.per_token_s, *script.before.values())
            if not all(0 <= wait <= LONGEST_WAIT_S for wait in waits):
                raise ValueError("gave a wait that is negative, or no number of seconds")
            for call in script.calls:
                msgspec.json.decode(call.arguments, type=dict[str, object])
            return None if script.passes else worded(request, script)

        return self.wrap(source, _nothing)

    def length(self, hook: LengthHook) -> LengthSource:
        def source(request: EngineRequest, rng: Random) -> int | None:
            tokens = hook(request, rng)
            if isinstance(tokens, bool):
                raise TypeError("gave bool, not a number of tokens")
            _check(tokens, int | None)
            return tokens

        return self.wrap(source, _nothing)

    def fault(self, hook: FaultHook) -> FaultSource:
        """A fault without a name gets the plugin's."""

        def source(facts: RequestFacts) -> Fault | None:
            fault = hook(facts)
            if fault is None:
                return None
            _check(fault, Fault)
            _check(fault.error, ApiError | None)
            if fault.damage is not None and not isinstance(fault.damage, Damage):
                raise TypeError("the damage of its Fault is none of config.fault_rules")
            _check_headers(fault.headers)
            if not all(isinstance(token, int) and 0 <= wait < LONGEST_WAIT_S for token, wait in fault.delays):
                raise ValueError("the delays of its Fault are not (token, seconds)")
            is_named = fault.name or not (fault.error or fault.damage or fault.delays)
            return fault if is_named else fault.named(self.plugin)

        return self.wrap(source, _nothing)

    def families(self, hook: MetricsHook) -> Families:
        prefix = self.plugin.replace("-", "_")

        def text() -> str:
            given = hook()
            for family in text_string_to_metric_families(given):
                if family.name != prefix and not family.name.startswith(f"{prefix}_"):
                    raise ValueError(f"family {family.name!r} must begin with {prefix}_")
            return given if given.endswith("\n") or not given else f"{given}\n"

        return self.wrap(text, str, refusals=())

    def middleware(self, inner: Middleware) -> Middleware:
        """A failed `begin` refuses the request, as it was not checked; a failed `end` changes nothing."""
        own = type(inner)

        def begin(context: RequestContext) -> Response | None:
            found = own.begin(inner, context)
            _check(found, Response | None)
            return found

        def end(context: RequestContext, response: Response) -> None:
            before = response.headers
            response.headers = dict(before)
            try:
                own.end(inner, context, response)
                _check_headers(response.headers)
            except BaseException:
                response.headers = before
                raise

        vars(inner)["begin"] = self.wrap(begin, self._refuse)
        vars(inner)["end"] = self.wrap(end, _nothing, refusals=())
        return inner

    def route(self, route: Route) -> Route:
        """A route of a plugin stays off the fast path. ConfigError for a path without `/`."""
        if not route.path.startswith("/"):
            raise ConfigError(f"plugin {self.plugin}: path {route.path!r} of a route must begin with a slash")

        def handled(context: RequestContext) -> Response:
            response = route.handle(context)
            _check(response, Response)
            _check_headers(response.headers)
            return response

        handle = self.wrap(handled, self._refuse)
        handle.__doc__ = route.handle.__doc__
        return replace(route, handle=handle, plain=None)

    def _refuse(self, context: RequestContext) -> Response:
        raise internal(f"The plugin {self.plugin} failed to handle the request.")


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
        self._manager = _manager_of(plugins)
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

    def replies(self, worded: Worded) -> list[ReplySource]:
        """Sources of replies, in the order of their calls."""
        return [guard.reply(hook, worded) for hook, guard in self._given("reply")]

    def length(self) -> LengthSource | None:
        """Returns a function for the first length that a plugin gives; None where no plugin has the hook."""
        sources = [guard.length(hook) for hook, guard in self._given("length")]

        def first(request: EngineRequest, rng: Random) -> int | None:
            lengths = (source(request, rng) for source in sources)
            return next((length for length in lengths if length is not None), None)

        return first if sources else None

    def faults(self) -> list[FaultSource]:
        """Sources of faults, in the order of their calls."""
        return [guard.fault(hook) for hook, guard in self._given("fault")]

    def step_cost(self, profile: Profile) -> CostModel | None:
        """Cost model of live steps, from the first plugin with the hook; None without such a plugin.

        After a failure of the plugin, a step has the profile's cost.
        """
        for cost, guard in self._given("step_cost", profile=profile):
            return PluginCost(guard.wrap(_step_seconds(cost), StepCost(profile.cost).seconds, refusals=()))
        return None

    def offline_step_cost(self, profile: Profile) -> tuple[str, CostModel] | None:
        """Name of the plugin, and its cost model for `simulate`; a failed step is a ConfigError."""
        for cost, guard in self._given("step_cost", profile=profile):
            return guard.plugin, PluginCost(_failing(guard.plugin, "step_cost", "")(_step_seconds(cost)))
        return None

    def middleware(self) -> list[Middleware]:
        """Middleware around requests, the outermost first."""
        return [
            guard.middleware(each)
            for given, guard in self._given("middleware")
            for each in (given if isinstance(given, Sequence) else (given,))
        ]

    def routes(self, taken: Callable[[], Iterator[Route]]) -> Iterator[tuple[str, list[Route]]]:
        """Yields blueprint names with their routes. ConfigError for a route that is in `taken`.

        Two paths that differ in names of parameters only are one.
        """
        for given, guard in self._given("routes"):
            added = [guard.route(route) for route in given]
            seen = {pair for known in taken() for pair in _answered(known)}
            for route in added:
                for method, path in _answered(route):
                    if (method, path) in seen:
                        told = f"route {method} {route.path} is there already"
                        raise ConfigError(f"plugin {guard.plugin}: {told}")
                    seen.add((method, path))
            yield f"plugin_{guard.plugin}", added

    def families(self) -> list[Families]:
        return [guard.families(hook) for hook, guard in self._given("metrics")]

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
        settings, implemented = self._current(), self.implemented()
        plugins: list[dict[str, object]] = []
        for plugin in self._plugins:
            guards = {name: self._guards.get((plugin.name, name)) for name in implemented[plugin.name]}
            own = [row for row in settings.table.rows if row.group == plugin.group]
            plugins.append(
                {
                    "name": plugin.name,
                    "version": plugin.version or None,
                    "api": API,
                    "origin": plugin.origin,
                    "hooks": {
                        name: {"in_use": guard is not None, **(guard or Guard("", "")).report()}
                        for name, guard in guards.items()
                    },
                    "settings": {row.name: row.shown(row.value(settings)) for row in own},
                }
            )
        return {"api": API, "plugins": plugins}

    def _implementations(self, name: str) -> list[HookImpl]:
        """Implementations of a hook, in pluggy's call order."""
        found: list[HookImpl] = getattr(self._manager.hook, name).get_hookimpls()
        return found[::-1]

    def _given(self, name: str, **more: object) -> Iterator[tuple[Any, Guard]]:
        """Calls the hooks of this name; yields results other than None, and guards. May raise ConfigError."""
        wanted, fits = FORMS[name]
        for found in self._implementations(name):
            plugin = found.plugin_name
            known = {"host": self._hosts[plugin], **more}
            with _failing(plugin, name, " at the start"):
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


def _manager_of(plugins: Sequence[Plugin]) -> PluginManager:
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


@contextmanager
def _failing(plugin: str, hook: str, when: str) -> Iterator[None]:
    """Converts an error in the block into a ConfigError of one line, with plugin and hook."""
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"plugin {plugin}: hook {hook} failed{when}: {reason}") from None


def _list_of(kind: type) -> Callable[[object], bool]:
    return lambda given: isinstance(given, Sequence) and all(isinstance(one, kind) for one in given)


FORMS: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("reply", "length", "fault", "metrics"), ("a function", callable)),
    "step_cost": ("a CostModel", lambda given: callable(getattr(given, "seconds", None))),
    "middleware": (
        "a Middleware, or a list of some",
        lambda given: isinstance(given, Middleware) or _list_of(Middleware)(given),
    ),
    "routes": ("a list of Routes", _list_of(Route)),
    "routing": ("a mapping of policies", lambda given: isinstance(given, Mapping)),
}
"""Hook -> description and test of its result at the start; None is valid for all."""

StepSeconds = Callable[[Batch[Any], float, bool], float]


class PluginCost(NamedTuple):
    seconds: StepSeconds


def _step_seconds(cost: CostModel) -> StepSeconds:
    """The cost of a step, in seconds; ValueError unless it is finite and not negative."""

    def seconds(batch: Batch[Any], start_s: float, idle: bool) -> float:
        given = float(cost.seconds(batch, start_s, idle))
        if not isfinite(given) or given < 0:
            raise ValueError(f"a step cannot cost {given} s")
        return given

    return seconds


class GuardedPolicy:
    """A plugin's routing policy. After a failure, the request goes to a random pod."""

    def __init__(self, make: PolicyMaker, guard: Guard, scores: Scores, rng: Random) -> None:
        """Raises ConfigError where the policy cannot be created."""
        with _failing(guard.plugin, "routing", " at the start"):
            self._inner = make(scores, rng)
        self._rng, self._failures = rng, 0
        self.choose = guard.wrap(self._chosen, self._by_chance, refusals=())

    @property
    def fallbacks(self) -> int:
        """Requests that the policy counts as fallbacks, plus failures of the policy."""
        return self._failures + int(getattr(self._inner, "fallbacks", 0))

    def _chosen(self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
        pod = self._inner.choose(incoming, pods, in_flight)
        if pod not in pods:
            raise ValueError(f"chose {pod!r}, which is none of the pods")
        return pod

    def _by_chance(self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
        self._failures += 1
        return self._rng.choice(pods)


def _nothing(*args: object) -> None:
    """Replaces the result of a failed hook whose result may be None."""


def _loop_s() -> float:
    """Start of this turn of the event loop, in seconds of the loop's clock; 0 without a loop."""
    hub = get_hub_if_exists()
    return 0.0 if hub is None else float(hub.loop.now())


def _answered(route: Route) -> list[tuple[str, str]]:
    parts = ["{}" if part.startswith("{") else part for part in route.path.split("/")]
    return [(method, "/".join(parts)) for method in route.methods]


def _check_headers(headers: Mapping[str, str]) -> None:
    """Raises ValueError unless all names and values are printable ASCII."""
    for name, value in headers.items():
        text = f"{name}{value}" if isinstance(name, str) and isinstance(value, str) else None
        if text is None or not text.isprintable() or not text.isascii():
            raise ValueError(f"header {name!r} has a value that cannot be sent")


def _check(given: object, kind: type | UnionType) -> None:
    """Raises TypeError unless `given` is an instance of `kind`."""
    if not isinstance(given, kind):
        raise TypeError(f"gave {type(given).__name__}, not {getattr(kind, '__name__', kind)}")


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
