"""Checks of hook results: wrappers around hooks that raise TypeError or ValueError for invalid results.

A `Guard` counts these errors as the plugin's, and returns a substitute.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite
from random import Random
from time import perf_counter
from typing import Any, ParamSpec, TypeVar

import msgspec
from gevent._hub_local import get_hub_if_exists
from prometheus_client.parser import text_string_to_metric_families

from app.base.metrics.exposition import Families
from app.engine.core.batch import Batch
from app.engine.core.errors import EngineError
from app.engine.core.reply import Reply
from app.engine.core.request import EngineRequest, ScriptedReply
from app.engine.core.step_cost import CostModel
from app.engine.simulated.modes import LengthSource, ReplySource
from app.plugins.hooks import FaultHook, LengthHook, MetricsHook, ReplyHook
from app.serving.faults.fault import DAMAGE, Fault
from app.serving.faults.injector import FaultSource
from app.serving.faults.script import RequestFacts
from app.serving.http.context import RequestContext
from app.serving.http.errors import ApiError
from app.serving.http.response import Response
from app.serving.http.route import Handler, Route
from app.serving.middleware.stack import Middleware
from config.declaration import ConfigError

P = ParamSpec("P")
T = TypeVar("T")
LONGEST_HOLD_S = 0.02
"""Longest hold of the event loop by a hook without a warning, in seconds; streams are late by as much."""
REFUSALS: tuple[type[Exception], ...] = (ApiError, EngineError)
"""Errors that a hook raises to refuse a request."""
log = logging.getLogger(__name__)


class Guard:
    """Counters of one hook of one plugin. The first error and the first long hold are logged."""

    def __init__(self, plugin: str, hook: str) -> None:
        self.plugin = plugin
        self.hook = hook
        self.calls = 0
        self.errors = 0
        self.long_holds = 0
        self.longest_hold_s = 0.0

    def wrap(
        self, function: Callable[P, T], otherwise: Callable[P, T], may_refuse: bool = False
    ) -> Callable[P, T]:
        """Wraps `function` for the server; `otherwise` replaces the result of a failed call.

        With `may_refuse`, errors in REFUSALS are raised and do not count as failures.
        """
        passed = REFUSALS if may_refuse else ()

        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            self.calls += 1
            loop_s, begun_s = _loop_s(), perf_counter()
            try:
                return function(*args, **kwargs)
            except passed:
                raise
            except (Exception, SystemExit) as error:  # also gunicorn's abort of a busy worker
                self._failed(error)
            finally:
                # If the loop turned during the call, only the time since that turn counts.
                self._held(perf_counter() - begun_s - (_loop_s() - loop_s))
            return otherwise(*args, **kwargs)

        return guarded

    def report(self) -> dict[str, float]:
        """Returns the counters for GET /admin/plugins."""
        return {
            "calls": self.calls,
            "errors": self.errors,
            "long_holds": self.long_holds,
            "longest_hold_ms": round(self.longest_hold_s * 1000, 3),
        }

    def _failed(self, error: BaseException) -> None:
        self.errors += 1
        if self.errors == 1:
            text = "plugin %s: hook %s failed; GET /admin/plugins counts how often"
            log.error(text, self.plugin, self.hook, exc_info=error)

    def _held(self, seconds: float) -> None:
        self.longest_hold_s = max(self.longest_hold_s, seconds)
        if seconds <= LONGEST_HOLD_S:
            return
        self.long_holds += 1
        if self.long_holds == 1:
            text = "plugin %s: hook %s held the event loop for %.0f ms, in which nobody was served"
            log.warning(text, self.plugin, self.hook, seconds * 1000)


def nothing(*args: object) -> None:
    """Substitute for a failed hook whose result may be None."""


@contextmanager
def start_fails(plugin: str, hook: str, when: str = " at the start") -> Iterator[None]:
    """Converts an error in the block into a ConfigError of one line, with plugin and hook."""
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"plugin {plugin}: hook {hook} failed{when}: {reason}") from None


def _loop_s() -> float:
    """Start of this turn of the event loop, in seconds of the loop's clock; 0 without a loop."""
    hub = get_hub_if_exists()
    return 0.0 if hub is None else float(hub.loop.now())


Worded = Callable[[EngineRequest, ScriptedReply], Reply]
"""Converts a scripted reply to tokens."""
LONGEST_WAIT_S = 1e9
"""Longest wait in a plugin's reply or fault, in seconds: about 30 years, far below overflow."""


def _is_list_of(kind: type) -> Callable[[object], bool]:
    return lambda given: isinstance(given, Sequence) and all(isinstance(one, kind) for one in given)


FORMS: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("reply", "length", "fault", "metrics"), ("a function", callable)),
    "step_cost": ("a CostModel", lambda given: callable(getattr(given, "seconds", None))),
    "middleware": (
        "a Middleware, or a list of some",
        lambda given: isinstance(given, Middleware) or _is_list_of(Middleware)(given),
    ),
    "routes": ("a list of Routes", _is_list_of(Route)),
    "routing": ("a mapping of policies", lambda given: isinstance(given, Mapping)),
}
"""Hook -> description and test of its result at the start; None is valid for all."""


def reply(hook: ReplyHook, worded: Worded) -> ReplySource:
    """Wraps a reply hook; a text becomes a `ScriptedReply`, which `worded` converts to tokens."""

    def source(request: EngineRequest, rng: Random) -> Reply | None:
        script = _script(hook(request, rng))
        return None if script is None else worded(request, script)

    return source


def _script(given: object) -> ScriptedReply | None:
    if given is None:
        return None
    if isinstance(given, str):
        return ScriptedReply(text=given)
    script = msgspec.convert(msgspec.to_builtins(_instance(given, ScriptedReply)), ScriptedReply)
    waits = (script.first_token_s, script.per_token_s, *script.before.values())
    if not all(0 <= wait <= LONGEST_WAIT_S for wait in waits):
        raise ValueError("gave a wait that is negative, or no number of seconds")
    for call in script.calls:
        msgspec.json.decode(call.arguments, type=dict[str, object])
    return None if script.passes else script


def length(hook: LengthHook) -> LengthSource:
    def source(request: EngineRequest, rng: Random) -> int | None:
        tokens = hook(request, rng)
        if isinstance(tokens, bool):
            raise TypeError("gave bool, not a number of tokens")
        return None if tokens is None else _instance(tokens, int)

    return source


def fault(hook: FaultHook, plugin: str) -> FaultSource:
    """Wraps a fault hook; a fault without a name gets the plugin's."""

    def source(facts: RequestFacts) -> Fault | None:
        given = hook(facts)
        if given is None:
            return None
        found: Fault = _instance(given, Fault)
        _instance(found.error, ApiError | None)
        if found.damage is not None and not isinstance(found.damage, DAMAGE):
            raise TypeError("the damage of its Fault is none of config.fault_rules")
        sendable(found.headers)
        if not all(isinstance(token, int) and 0 <= wait < LONGEST_WAIT_S for token, wait in found.delays):
            raise ValueError("the delays of its Fault are not (token, seconds)")
        is_named = found.name or not (found.error or found.damage or found.delays)
        return found if is_named else found.named(plugin)

    return source


StepSeconds = Callable[[Batch[Any], float, bool], float]


def step_seconds(cost: CostModel) -> StepSeconds:
    """Wraps a cost model; the cost of a step, in seconds, must be finite and not negative."""

    def seconds(batch: Batch[Any], start_s: float, idle: bool) -> float:
        given = float(cost.seconds(batch, start_s, idle))
        if not isfinite(given) or given < 0:
            raise ValueError(f"a step cannot cost {given} s")
        return given

    return seconds


def families(hook: MetricsHook, plugin: str) -> Families:
    prefix = plugin.replace("-", "_")

    def text() -> str:
        given = hook()
        for family in text_string_to_metric_families(given):
            if family.name != prefix and not family.name.startswith(f"{prefix}_"):
                raise ValueError(f"family {family.name!r} must begin with {prefix}_")
        return given if given.endswith("\n") or not given else f"{given}\n"

    return text


def handler(handle: Handler) -> Handler:
    def handled(context: RequestContext) -> Response:
        response: Response = _instance(handle(context), Response)
        sendable(response.headers)
        return response

    return handled


def begin(middleware: Middleware, context: RequestContext) -> Response | None:
    """Calls a middleware's `begin` and checks the type of its result."""
    found: Response | None = _instance(type(middleware).begin(middleware, context), Response | None)
    return found


def end(middleware: Middleware, context: RequestContext, response: Response) -> None:
    """Calls a middleware's `end`; after a failure, restores the response's headers."""
    before = response.headers
    response.headers = dict(before)
    try:
        type(middleware).end(middleware, context, response)
        sendable(response.headers)
    except BaseException:
        response.headers = before
        raise


def sendable(headers: Mapping[str, str]) -> None:
    """Raises ValueError unless all names and values are printable ASCII."""
    for name, value in headers.items():
        text = f"{name}{value}" if isinstance(name, str) and isinstance(value, str) else None
        if text is None or not text.isprintable() or not text.isascii():
            raise ValueError(f"header {name!r} has a value that cannot be sent")


def _instance(given: Any, kind: Any) -> Any:
    """Returns `given`; TypeError unless `given` is an instance of `kind`, a class or a union."""
    if not isinstance(given, kind):
        raise TypeError(f"gave {type(given).__name__}, not {getattr(kind, '__name__', kind)}")
    return given
