"""The plugins of a process: pluggy finds their hooks; each hook is called once, at the start.

A `Guard` stands around what a hook gave. Results that make no sense raise TypeError or ValueError
there. `python -m app plugins` lists plugins, and `simulate` uses their step costs.
"""

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, NamedTuple, NoReturn, ParamSpec, TypeVar

import msgspec
from gevent._hub_local import get_hub_if_exists
from msgspec import Struct
from pluggy import HookImpl, PluginManager, PluginValidationError
from prometheus_client.parser import text_string_to_metric_families

from app import plugins as specifications
from app.base.clock.clock import Streams
from app.base.metrics.instruments import Families
from app.engine.core.batch import Batch
from app.engine.core.errors import EngineError
from app.engine.core.request import EngineRequest, Reply, ScriptedReply
from app.engine.core.step_loop import CostModel, StepCost
from app.engine.simulated.corpus import LengthSource, ReplySource
from app.lab.fleet.routing import Incoming, Policy, PolicyMaker, Scores
from app.lab.load.autoscale import BUILT_IN, AutoscalerStart, Decide
from app.lab.load.policies import POLICIES
from app.plugins import HOOKS, PROJECT, MetricsHook, PluginHost
from app.serving.api.fault import Fault, RequestFacts
from app.serving.faults.injector import FaultSource
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError, bad_request, internal
from app.serving.http.response import Response
from app.serving.http.route import Route
from app.serving.middleware.stack import Middleware
from config.declaration import ConfigError, suggestion
from config.flags import as_command
from config.loader import load
from config.plugins import API, from_plain, to_plain
from config.profile import Profile
from config.settings import Plugin, Settings

P = ParamSpec("P")
T = TypeVar("T")
Worded = Callable[[EngineRequest, ScriptedReply], Reply]
"""Converts a scripted reply to tokens."""
StepSeconds = Callable[[Batch[Any], float, bool], float]
LONGEST_HOLD_S, LONGEST_WAIT_S = 0.02, 1e9
"""Longest hold of the event loop without a warning, and longest wait or step of a plugin, in
seconds.
"""
log = logging.getLogger(__name__)


class Guard(Struct):
    """Calls what one hook of one plugin gave.

    The first error and the first long hold are logged.
    """

    plugin: str
    hook: str
    in_use: bool = False
    """True if the hook gave more than None at the start."""
    calls: int = 0
    errors: int = 0
    long_holds: int = 0
    longest_hold_s: float = 0.0

    def wrap(
        self,
        function: Callable[P, T],
        otherwise: Callable[P, T],
        refusals: tuple[type[Exception], ...] = (ApiError, EngineError),
    ) -> Callable[P, T]:
        """Wraps `function`; `otherwise` replaces a failed call, errors in `refusals` refuse the
        request.
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
                held_s = time.perf_counter() - begun_s - (_loop_s() - loop_s)
                self.longest_hold_s = max(self.longest_hold_s, held_s)
                self.long_holds += held_s > LONGEST_HOLD_S
                if held_s > LONGEST_HOLD_S and self.long_holds == 1:
                    text = "plugin %s: hook %s held the event loop for %.0f ms, in which nobody was served"
                    log.warning(text, self.plugin, self.hook, held_s * 1000)
            return otherwise(*args, **kwargs)

        return guarded

    def checked(self, hook: Callable[P, object], check: Callable[..., T]) -> Callable[P, T | None]:
        """Wraps a hook whose result may be None; `check` gets any other result, and the arguments."""
        if not callable(hook):
            raise TypeError(f"gave {type(hook).__name__}, not a function")

        def source(*args: P.args, **kwargs: P.kwargs) -> T | None:
            given = hook(*args, **kwargs)
            return None if given is None else check(given, *args)

        return self.wrap(source, _nothing)

    def middleware(self, inner: Middleware) -> Middleware:
        """A failed `begin` refuses the request, as it was not checked; a failed `end` changes
        nothing.
        """
        own = type(_instance(inner, Middleware))

        def begin(context: RequestContext) -> Response | None:
            response = own.begin(inner, context)
            return None if response is None else _instance(response, Response)

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

    def routes(self, given: Sequence[Route], seen: set[tuple[str, str]]) -> tuple[str, list[Route]]:
        """Returns the blueprint of these routes, and adds them to `seen`.

        ConfigError for a wrong route.
        """
        made = []
        for route in given:
            answered = _answered(route)
            if not route.path.startswith("/"):
                raise ConfigError(
                    f"plugin {self.plugin}: path {route.path!r} must begin with a slash"
                )
            if answered & seen:
                told = f"route {route.methods[0]} {route.path} is there already"
                raise ConfigError(f"plugin {self.plugin}: {told}")
            seen |= answered

            def handled(context: RequestContext, route: Route = route) -> Response:
                response = _instance(route.handle(context), Response)
                _check_headers(response.headers)
                return response

            handle = self.wrap(handled, self._refuse)
            handle.__doc__ = route.handle.__doc__
            made.append(replace(route, handle=handle, plain=None))  # stays off the fast path
        return f"plugin_{self.plugin}", made

    def _refuse(self, context: RequestContext) -> Response:
        raise internal(f"The plugin {self.plugin} failed to handle the request.")

    def families(self, hook: MetricsHook) -> Families:
        prefix = self.plugin.replace("-", "_")

        def text() -> str:
            given = hook()
            for family in text_string_to_metric_families(given):
                if family.name != prefix and not family.name.startswith(f"{prefix}_"):
                    raise ValueError(f"family {family.name!r} must begin with {prefix}_")
            return f"{given.rstrip()}\n" if given else ""

        return self.wrap(text, str, refusals=())

    def step_cost(self, cost: CostModel, otherwise: StepSeconds) -> CostModel:
        """A step has a finite cost; `otherwise` is asked after a failure."""

        def seconds(batch: Batch[Any], start_s: float, idle: bool) -> float:
            given = float(cost.seconds(batch, start_s, idle))
            _check_seconds(given)
            return given

        return PluginCost(self.wrap(seconds, otherwise, refusals=()))

    def policy(self, make: PolicyMaker, scores: Scores, rng: Random) -> Policy:
        """A plugin's routing policy. After a failure, the request goes to a random pod."""
        with _failing(self.plugin, "routing"):
            policy = make(scores, rng)
        choose = policy.choose

        def chosen(incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
            pod = choose(incoming, pods, in_flight)
            if pod not in pods:
                raise ValueError(f"chose {pod!r}, which is none of the pods")
            return pod

        guarded = self.wrap(chosen, lambda incoming, pods, in_flight: rng.choice(pods), refusals=())
        vars(policy)["choose"] = guarded
        vars(policy).setdefault("fallbacks", getattr(policy, "fallbacks", 0))
        return policy

    def autoscaler(self, start: AutoscalerStart, pods: int) -> Decide:
        """Decisions of a plugin's policy; its first failure ends the run."""
        with _failing(self.plugin, "autoscaling"):
            decide = start(pods)
        return self.wrap(
            lambda look: _instance(decide(look), int), partial(_failed, "autoscaling"), refusals=()
        )

    def report(self) -> dict[str, float]:
        counts = {name: getattr(self, name) for name in ("in_use", "calls", "errors", "long_holds")}
        return {**counts, "longest_hold_ms": round(self.longest_hold_s * 1000, 3)}


# The checks of results for a request.


def reply_of(worded: Worded, given: object, request: EngineRequest, rng: Random) -> Reply | None:
    """Converts a text or a `ScriptedReply` to tokens; None if it passes."""
    script = ScriptedReply(text=given) if isinstance(given, str) else given
    script = msgspec.convert(msgspec.to_builtins(script), ScriptedReply)
    _check_seconds(script.first_token_s, script.per_token_s, *script.before.values())
    for call in script.calls:
        msgspec.json.decode(call.arguments, type=dict[str, object])
    return None if script.passes else worded(request, script)


def length_of(given: object, request: EngineRequest, rng: Random) -> int:
    return msgspec.convert(given, int)


def _fault_of(plugin: str, given: object, facts: RequestFacts) -> Fault:
    """Checks a fault; one without a name gets the plugin's."""
    fault = _instance(given, Fault)
    _instance(fault.error or bad_request(""), ApiError)
    _check_headers(fault.headers)
    _check_seconds(*(wait_s for _, wait_s in fault.delays))
    is_named = fault.name or not (fault.error or fault.damage or fault.delays)
    return fault if is_named else msgspec.structs.replace(fault, name=plugin)


def _nothing(*args: object, **kwargs: object) -> None:
    """Replaces the result of a failed hook whose result may be None."""


def _loop_s() -> float:
    """Start of this turn of the event loop, in seconds of the loop's clock; 0 without a loop."""
    hub = get_hub_if_exists()
    return 0.0 if hub is None else float(hub.loop.now())


def _check_seconds(*waits: float) -> None:
    """Raises ValueError for a negative number, or one that is not finite."""
    for wait_s in waits:
        if not 0 <= wait_s <= LONGEST_WAIT_S:
            raise ValueError(f"gave {wait_s} seconds")


def _check_headers(headers: Mapping[str, str]) -> None:
    """Raises ValueError unless all names and values are printable ASCII."""
    for name, value in headers.items():
        text = f"{name}{value}" if isinstance(name, str) and isinstance(value, str) else None
        if text is None or not text.isprintable() or not text.isascii():
            raise ValueError(f"header {name!r} has a value that cannot be sent")


def _instance(given: object, kind: type[T]) -> T:
    if not isinstance(given, kind):
        raise TypeError(f"gave {type(given).__name__}, not {kind.__name__}")
    return given


class PluginCost(NamedTuple):
    seconds: StepSeconds


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
        manager = _manager_of(plugins)
        self._implementations: dict[str, list[HookImpl]] = {
            name: getattr(manager.hook, name).get_hookimpls()[::-1] for name in HOOKS
        }
        """Implementations of each hook, in pluggy's call order."""
        self._hosts = {
            each.name: PluginHost(each, current, streams(f"plugin {each.name}"), now)
            for each in plugins
        }
        self.guards: dict[str, dict[str, Guard]] = {each.name: {} for each in plugins}
        """Plugin -> implemented hook -> guard."""
        for name, all_found in self._implementations.items():
            for found in all_found:
                self.guards[found.plugin_name][name] = Guard(found.plugin_name, name)

    def implements(self, *names: str) -> bool:
        return any(self._implementations[name] for name in names)

    def replies(self, worded: Worded) -> list[ReplySource]:
        return self._made(
            "reply", lambda hook, guard: guard.checked(hook, partial(reply_of, worded))
        )

    def length(self) -> LengthSource | None:
        """Returns a function for the first length that a plugin gives; None where no plugin has the
        hook.
        """
        sources = self._made("length", lambda hook, guard: guard.checked(hook, length_of))

        def first(request: EngineRequest, rng: Random) -> int | None:
            lengths = (source(request, rng) for source in sources)
            return next((length for length in lengths if length is not None), None)

        return first if sources else None

    def faults(self) -> list[FaultSource]:
        return self._made(
            "fault", lambda hook, guard: guard.checked(hook, partial(_fault_of, guard.plugin))
        )

    def families(self) -> list[Families]:
        return self._made("metrics", lambda hook, guard: guard.families(hook))

    def step_cost(
        self, profile: Profile, otherwise: StepSeconds | None = None
    ) -> tuple[str, CostModel] | None:
        """Name and cost model of the first plugin; where it fails, `otherwise` or the profile is
        asked.
        """
        usual = otherwise or StepCost(profile.cost).seconds
        found = self._made(
            "step_cost",
            lambda cost, guard: (guard.plugin, guard.step_cost(cost, usual)),
            profile=profile,
        )
        return found[0] if found else None

    def middleware(self) -> list[Middleware]:
        """Middleware around requests, the outermost first."""
        made: list[Middleware] = []

        def add(given: Middleware | Sequence[Middleware], guard: Guard) -> None:
            made.extend(map(guard.middleware, given if isinstance(given, Sequence) else (given,)))

        self._made("middleware", add)
        return made

    def routes(self, taken: Callable[[], Iterator[Route]]) -> list[tuple[str, list[Route]]]:
        """Returns blueprint names with their routes. ConfigError for a route that is in `taken`."""
        seen = {pair for route in taken() for pair in _answered(route)}
        return self._made("routes", lambda given, guard: guard.routes(given, seen))

    def policies(self) -> dict[str, PolicyMaker]:
        """Name -> routing policy of a fleet. ConfigError for a name in use."""
        return self._named("routing", POLICIES, lambda guard, make: partial(guard.policy, make))

    def autoscalers(self) -> dict[str, AutoscalerStart]:
        """Name -> autoscaling policy. ConfigError for a name in use."""
        return self._named(
            "autoscaling", BUILT_IN, lambda guard, start: partial(guard.autoscaler, start)
        )

    def _named(
        self, hook: str, taken: Sequence[str], wrap: Callable[[Guard, Any], T]
    ) -> dict[str, T]:
        found: dict[str, T] = {}

        def add(given: Mapping[str, Any], guard: Guard) -> None:
            for name, make in given.items():
                if name in found or name in taken:
                    raise ConfigError(
                        f"plugin {guard.plugin}: {hook} policy {name} is there already"
                    )
                found[name] = wrap(guard, make)

        self._made(hook, add)
        return found

    def report(self) -> dict[str, object]:
        """Body of GET /admin/plugins."""
        settings = self._current()
        plugins = [
            {
                "name": plugin.name,
                "version": plugin.version or None,
                "api": API,
                "origin": plugin.origin,
                "hooks": {hook: guard.report() for hook, guard in self.guards[plugin.name].items()},
                "settings": {
                    row.name: row.shown(row.value(settings))
                    for row in settings.table.rows
                    if row.group == plugin.group
                },
            }
            for plugin in self._plugins
        ]
        return {"api": API, "plugins": plugins}

    def _made(self, hook: str, make: Callable[[Any, Guard], T], **more: object) -> list[T]:
        """Calls the hooks of this name; returns what `make` makes of results other than None."""
        made: list[T] = []
        for found in self._implementations[hook]:
            plugin = found.plugin_name
            guard, known = self.guards[plugin][hook], {"host": self._hosts[plugin], **more}
            with _failing(plugin, hook):
                given = found.function(*(known[argument] for argument in found.argnames))
                if given is not None:
                    made.append(make(given, guard))
                    guard.in_use = True
        return made


def registry_of(settings: Settings) -> PluginRegistry:
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
def _failing(plugin: str, hook: str) -> Iterator[None]:
    """Converts an error in the block into a ConfigError of one line, with plugin and hook."""
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigError(f"plugin {plugin}: hook {hook} failed at the start: {reason}") from None


def _answered(route: Route) -> set[tuple[str, str]]:
    """Returns methods and paths; names of parameters make no difference."""
    path = "/".join("{}" if part.startswith("{") else part for part in route.path.split("/"))
    return {(method, path) for method in route.methods}


@as_command()
def run(argv: Sequence[str]) -> int:
    """Prints the plugins of a server started with the flags `argv`; returns the exit status."""
    settings = load(argv, os.environ, warn=lambda text: None)
    guards = registry_of(settings).guards
    for plugin in settings.PLUGINS:
        about = (getattr(plugin.hooks, "__doc__", None) or "").strip().partition("\n")[0]
        print(f"{plugin.name} {plugin.version}".rstrip() + f" ({plugin.origin}): {about}")
        print(f"  hooks: {', '.join(guards[plugin.name]) or 'none'}")
        for row in settings.table.rows:
            if row.group == plugin.group:
                rules = f" The value {row.limits}." if row.limits else ""
                value = row.write(row.value(settings)) if not row.about.secret else "***"
                print(
                    f"  --{row.name} ({row.kind.name}, {row.env[0]}; now {value!r}): {row.help}{rules}"
                )
    if not settings.PLUGINS:
        print("no plugins")
    return 0


# What other processes get: functions of settings as JSON types, which can be pickled.


def plugged_costs(
    settings: Settings, profile: Profile
) -> tuple[str, Callable[[Profile], CostModel]] | None:
    """Returns the name of the plugin that sets step costs, and its cost models; None without one."""
    found = registry_of(settings).step_cost(profile, partial(_failed, "step_cost"))
    return None if found is None else (found[0], partial(_plugged_cost, to_plain(settings)))


def _plugged_cost(plain: dict[str, Any], profile: Profile) -> CostModel:
    found = registry_of(from_plain(plain)).step_cost(profile, partial(_failed, "step_cost"))
    return StepCost(profile.cost) if found is None else found[1]


def plugged_policies(settings: Settings) -> Mapping[str, PolicyMaker]:
    return registry_of(settings).policies()


def plugged_autoscalers(settings: Settings) -> dict[str, AutoscalerStart]:
    """Returns the autoscaling policies of the plugins in the settings, by name."""
    plain, names = to_plain(settings), registry_of(settings).autoscalers()
    return {name: partial(_plugged_autoscaler, plain, name) for name in names}


def _plugged_autoscaler(plain: dict[str, Any], name: str, pods: int) -> Decide:
    return registry_of(from_plain(plain)).autoscalers()[name](pods)


def _failed(hook: str, *args: object) -> NoReturn:
    raise ConfigError(f"hook {hook} of a plugin failed; the line before says how")
