"""Handlers of the actions of an operator: sleep, pause, and resets of the prefix cache."""

from typing import Annotated

from gevent.event import Event
from msgspec import Meta, Struct

from app.core.base.callers import watched
from app.core.engine.lifecycle import Operations
from app.core.engine.sleep import DEEPEST_SLEEP, PauseMode
from app.core.protocol.decoding import decode_query
from app.core.server.http.context import RequestContext
from app.core.server.http.route import Route, RouteDocs, action


class SleepQuery(Struct):
    """The query of ``POST /sleep``."""

    level: Annotated[int, Meta(ge=0, le=DEEPEST_SLEEP)] = 1
    mode: PauseMode = "abort"


class UnlimitedSleepQuery(Struct):
    """The query of ``POST /sleep`` up to vLLM 0.31: any level."""

    level: int = 1
    mode: PauseMode = "abort"


class WakeQuery(Struct):
    """The query of ``POST /wake_up``, which the handler reads without this type."""

    tags: list[str]


class PauseQuery(Struct):
    """The query of ``POST /pause``."""

    mode: PauseMode = "abort"
    clear_cache: bool = True


class WaitingPauseQuery(Struct):
    """The query of ``POST /pause`` up to vLLM 0.15."""

    wait_for_inflight_requests: bool = False
    clear_cache: bool = True

    @property
    def mode(self) -> PauseMode:
        """How the pause treats running requests."""
        return "wait" if self.wait_for_inflight_requests else "abort"


class ActionRules(Struct, frozen=True, kw_only=True):
    """Queries that differ between versions of vLLM; the defaults are the newest version's."""

    sleep_query: type[SleepQuery] | type[UnlimitedSleepQuery] = SleepQuery
    pause_query: type[PauseQuery] | type[WaitingPauseQuery] = PauseQuery


class ResetQuery(Struct):
    """The query of ``POST /reset_prefix_cache``."""

    reset_running_requests: bool = False
    reset_external: bool = False
    """Also empties the tier in host memory (`kv-offload-size`)."""


class EngineActions:
    """Actions on one engine. Without `sleep_enabled` (`enable-sleep-mode`) sleep has no effect."""

    def __init__(
        self, lifecycle: Operations, sleep_enabled: bool, rules: ActionRules | None = None
    ) -> None:
        """None for `rules` selects the queries of the newest version."""
        self._lifecycle = lifecycle
        self._sleep_enabled = sleep_enabled
        self._rules = rules or ActionRules()

    def routes(self, prefix: str = "") -> list[Route]:
        """Returns the routes of the actions; `prefix` begins their paths."""
        return [
            action(f"POST {prefix}/sleep", self._sleep, RouteDocs(query=SleepQuery)),
            action(f"POST {prefix}/wake_up", self._wake_up, RouteDocs(query=WakeQuery)),
            action(f"POST {prefix}/pause", self._pause, RouteDocs(query=PauseQuery)),
            action(f"POST {prefix}/resume", self._resume),
            action(
                f"POST {prefix}/reset_prefix_cache",
                self._reset_prefix_cache,
                RouteDocs(query=ResetQuery),
            ),
        ]

    def _sleep(self, context: RequestContext) -> object:
        """Puts the model to sleep: level 0 pauses, 1 offloads the weights, 2 discards them."""
        query = decode_query(context.query(), self._rules.sleep_query)
        level = min(max(0, query.level), DEEPEST_SLEEP)
        if self._sleep_enabled:
            caller_left = Event()
            with watched(context.connection, caller_left.set):
                self._lifecycle.sleep(level, query.mode, caller_left)
        return {"status": "sleeping", "level": level}

    def _wake_up(self, context: RequestContext) -> object:
        """Wakes the model up, or only the parts that `tags` name."""
        tags = list(context.arguments("tags")) or None
        is_awake = self._lifecycle.wake_up(tags)
        return {"status": "awake" if is_awake else "sleeping", "tags": tags}

    def _pause(self, context: RequestContext) -> object:
        """Stops starting requests; `mode` decides about running requests."""
        query = decode_query(context.query(), self._rules.pause_query)
        caller_left = Event()
        with watched(context.connection, caller_left.set):
            self._lifecycle.pause(query.mode, caller_left, query.clear_cache)
        return {"status": "paused"}

    def _resume(self, context: RequestContext) -> object:
        """Starts requests again."""
        self._lifecycle.resume()
        return {"status": "resumed"}

    def _reset_prefix_cache(self, context: RequestContext) -> object:
        """Empties the prefix cache."""
        query = decode_query(context.query(), ResetQuery)
        is_reset = self._lifecycle.reset_prefix_cache(
            query.reset_running_requests, query.reset_external
        )
        return {"success": is_reset}
