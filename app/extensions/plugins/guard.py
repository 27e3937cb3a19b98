"""Guards around the functions of plugins: failures and long calls spoil no other request.

Each failure is counted, and the first of a hook is logged. A result that makes no sense counts as a
failure.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, NamedTuple, ParamSpec, TypeVar

import msgspec
from gevent._hub_local import get_hub_if_exists
from msgspec import Struct
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from app.core.base.metrics.instruments import Families
from app.core.engine.batch import Batch
from app.core.engine.errors import EngineError
from app.core.engine.request import ScriptedReply
from app.core.engine.step_cost import CostModel
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, bad_request, internal
from app.core.server.http.fault import Fault
from app.core.server.http.response import Response
from app.core.server.http.route import Route
from app.core.server.middleware.stack import Middleware
from app.extensions.plugins.policies import Incoming, Policy
from config.untrusted import decode_untrusted

P = ParamSpec("P")
T = TypeVar("T")
StepSeconds = Callable[[Batch[Any], float, bool], float]
"""Returns the seconds of a step from its batch, its start, and whether the engine was idle."""
MAX_HOLD_S = 0.02
"""Longest hold of the event loop without a warning, in seconds."""
MAX_WAIT_S = 1e9
"""Longest wait or step of a plugin, in seconds."""
log = logging.getLogger(__name__)


class Guard(Struct):
    """Calls what one hook of one plugin returned, and counts its failures and long calls."""

    plugin: str
    hook: str
    in_use: bool = False
    """True if the hook returned something at the start."""
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
        """Returns `function` with this guard.

        `otherwise` replaces a failed call. Errors in `refusals` are raised and reject the request.
        """

        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            self.calls += 1
            loop_s = _loop_s()
            start_s = time.perf_counter()
            try:
                return function(*args, **kwargs)
            except refusals:
                raise
            except (Exception, SystemExit) as error:  # also gunicorn's abort of a busy worker
                self._note_error(error)
            finally:
                # If the loop turned during the call, only the time since that turn counts.
                self._note_hold(time.perf_counter() - start_s - (_loop_s() - loop_s))
            return otherwise(*args, **kwargs)

        return guarded

    def _note_error(self, error: BaseException) -> None:
        self.errors += 1
        if self.errors > 1:
            return
        counted = "GET /admin/plugins counts how often"
        if isinstance(error, TimeRangeError):  # found here: a traceback shows nothing of the plugin
            log.error("plugin %s: hook %s %s; %s", self.plugin, self.hook, error, counted)
        else:
            text = "plugin %s: hook %s failed; %s"
            log.error(text, self.plugin, self.hook, counted, exc_info=error)

    def _note_hold(self, held_s: float) -> None:
        self.longest_hold_s = max(self.longest_hold_s, held_s)
        if held_s <= MAX_HOLD_S:
            return
        self.long_holds += 1
        if self.long_holds == 1:
            text = "plugin %s: hook %s held the event loop for %.0f ms, which delays all requests"
            log.warning(text, self.plugin, self.hook, held_s * 1000)

    def reply(self, hook: Callable[P, object]) -> Callable[P, ScriptedReply | None]:
        """Returns a guarded source of replies; a text becomes a `ScriptedReply`."""
        return self._source(hook, checked_reply)

    def length(self, hook: Callable[P, object]) -> Callable[P, int | None]:
        """Returns a guarded source of lengths, in tokens."""
        return self._source(hook, _checked_length)

    def fault(self, hook: Callable[P, object]) -> Callable[P, Fault | None]:
        """Returns a guarded source of faults; a fault without a name gets the plugin's."""

        def check(answer: object) -> Fault:
            return checked_fault(answer, self.plugin)

        return self._source(hook, check)

    def _source(
        self, hook: Callable[P, object], check: Callable[[object], T]
    ) -> Callable[P, T | None]:
        """Returns the guarded `hook`; `check` converts its results other than None."""
        if not callable(hook):
            raise TypeError(f"returned {type(hook).__name__}, not a function")

        def checked(*args: P.args, **kwargs: P.kwargs) -> T | None:
            answer = hook(*args, **kwargs)
            if answer is None:
                return None
            return check(answer)

        return self.wrap(checked, _none)

    def step_cost(self, cost: CostModel, otherwise: StepSeconds) -> CostModel:
        """Returns a guarded cost of steps; `otherwise` is asked after a failure."""

        def seconds(batch: Batch[Any], start_s: float, idle: bool) -> float:
            answer = cost.seconds(batch, start_s, idle)
            try:
                step_s = float(answer)
            except OverflowError:  # a whole number beyond all floats
                step_s = math.inf
            check_seconds(step_s)
            return step_s

        return GuardedCost(self.wrap(seconds, otherwise, refusals=()))

    def keeps_fast_path(self, hook: Callable[[Any], bool]) -> Callable[[Any], bool]:
        """Returns a guarded decision; after a failure no request takes the fast path."""

        def refuse(settings: object) -> bool:
            return False

        return self.wrap(hook, refuse, refusals=())

    def route(self, route: Route) -> Route:
        """Returns a guarded route, which stays off the fast path."""

        def handle(context: RequestContext) -> Response:
            response = checked_instance(route.handle(context), Response)
            check_headers(response.headers)
            return response

        guarded = self.wrap(handle, self.refuse)
        guarded.__doc__ = route.handle.__doc__
        return replace(route, handle=guarded, plain=None)

    def refuse(self, context: RequestContext) -> Response:
        """Raises the error of a request that the plugin failed to handle."""
        raise internal(f"The plugin {self.plugin} failed to handle the request.")

    def families(self, render: Families) -> Families:
        """Returns guarded metric families, whose names begin with the plugin's."""
        prefix = self.plugin.replace("-", "_")

        def text() -> str:
            rendered = render()
            for family in text_string_to_metric_families(rendered):
                if family.name != prefix and not family.name.startswith(f"{prefix}_"):
                    raise ValueError(
                        f"the name of the metric family {family.name!r} must begin with {prefix}_"
                    )
            if not rendered:
                return ""
            return f"{rendered.rstrip()}\n"

        return self.wrap(text, str, refusals=())

    def report(self) -> dict[str, float]:
        """Returns the counts for GET /admin/plugins."""
        return {
            "in_use": self.in_use,
            "calls": self.calls,
            "errors": self.errors,
            "long_holds": self.long_holds,
            "longest_hold_ms": round(self.longest_hold_s * 1000, 3),
        }


class GuardedCost(NamedTuple):
    """The cost model of a plugin."""

    seconds: StepSeconds


class GuardedMiddleware(Middleware):
    """The middleware of a plugin.

    A failed `begin` refuses the request, as it was not checked; a failed `end` changes nothing.
    """

    def __init__(self, inner: Middleware, guard: Guard) -> None:
        self._inner = checked_instance(inner, Middleware)
        self._guarded_begin = guard.wrap(self._checked_begin, guard.refuse)
        self._guarded_end = guard.wrap(self._checked_end, _none, refusals=())
        self.active = inner.active
        self.concerns_plain = inner.concerns_plain
        self.header = inner.header
        self.route_paths = inner.route_paths
        self.most_plain_bytes = inner.most_plain_bytes
        self.caches = inner.caches

    def on_settings(self, settings: object) -> None:
        """Follows the inner middleware, which may be active for some settings only."""
        self.active = self._inner.active

    def begin(self, context: RequestContext) -> Response | None:
        """Returns the response of the inner middleware; None to go on."""
        return self._guarded_begin(context)

    def end(self, context: RequestContext, response: Response) -> None:
        """Lets the inner middleware change the response."""
        self._guarded_end(context, response)

    def _checked_begin(self, context: RequestContext) -> Response | None:
        response = self._inner.begin(context)
        if response is None:
            return None
        return checked_instance(response, Response)

    def _checked_end(self, context: RequestContext, response: Response) -> None:
        original_headers = response.headers
        response.headers = dict(original_headers)
        try:
            self._inner.end(context, response)
            check_headers(response.headers)
        except BaseException:
            response.headers = original_headers
            raise


class GuardedPolicy:
    """The routing policy of a plugin. After a failure, a request goes to a random pod."""

    def __init__(self, policy: Policy, guard: Guard, rng: Random) -> None:
        self._policy = policy
        self._rng = rng
        self._choose = guard.wrap(self._checked_choice, self._random_choice, refusals=())

    @property
    def fallbacks(self) -> int:
        """Requests that the policy could not route by its rule, if it counts them."""
        return getattr(self._policy, "fallbacks", 0)

    def choose(self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]) -> str:
        """Returns the pod for a request."""
        return self._choose(incoming, pods, in_flight)

    def _checked_choice(
        self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]
    ) -> str:
        pod = self._policy.choose(incoming, pods, in_flight)
        if pod not in pods:
            raise ValueError(f"chose {pod!r}, which is not one of the pods")
        return pod

    def _random_choice(
        self, incoming: Incoming, pods: Sequence[str], in_flight: Mapping[str, int]
    ) -> str:
        return self._rng.choice(pods)


def checked_reply(answer: object) -> ScriptedReply:
    """Returns a text or a `ScriptedReply` as a valid `ScriptedReply`. Raises ValueError."""
    if isinstance(answer, str):
        answer = ScriptedReply(text=answer)
    script = msgspec.convert(msgspec.to_builtins(answer), ScriptedReply)
    check_seconds(script.first_token_s, script.per_token_s, *script.token_delays.values())
    for call in script.calls:
        decode_untrusted(call.arguments, type=dict[str, object])
    return script


def checked_fault(answer: object, plugin: str) -> Fault:
    """Returns a valid fault; without a name, it gets that of the plugin. Raises ValueError."""
    fault = checked_instance(answer, Fault)
    checked_instance(fault.error or bad_request(""), ApiError)
    check_headers(fault.headers)
    check_seconds(*(wait_s for _, wait_s in fault.delays))
    has_effect = fault.error is not None or fault.damage is not None or fault.delays
    if fault.name or not has_effect:
        return fault
    return msgspec.structs.replace(fault, name=plugin)


class TimeRangeError(ValueError):
    """A plugin has returned a time that is negative, not finite, or too long."""


def check_seconds(*waits: float) -> None:
    """Raises TimeRangeError for a negative number, or one above `MAX_WAIT_S`."""
    for wait_s in waits:
        if not 0 <= wait_s <= MAX_WAIT_S:
            raise TimeRangeError(
                f"returned {wait_s} seconds, which is not from 0 to {MAX_WAIT_S:g}"
            )


def check_headers(headers: Mapping[str, str]) -> None:
    """Raises ValueError unless all names and values are printable ASCII."""
    for name, value in headers.items():
        is_text = isinstance(name, str) and isinstance(value, str)
        text = f"{name}{value}"
        if not (is_text and text.isprintable() and text.isascii()):
            raise ValueError(f"header {name!r} has an invalid value")


def checked_instance(value: object, kind: type[T]) -> T:
    """Returns `value`. Raises TypeError unless it is a `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"returned {type(value).__name__}, not {kind.__name__}")
    return value


def _checked_length(answer: object) -> int:
    return msgspec.convert(answer, int)


def _none(*args: object, **kwargs: object) -> None:
    """Replaces the result of a failed hook whose result may be None."""


def _loop_s() -> float:
    """Start of this turn of the event loop, in seconds of the loop's clock; 0 without a loop."""
    hub = get_hub_if_exists()
    if hub is None:
        return 0.0
    return float(hub.loop.now())
