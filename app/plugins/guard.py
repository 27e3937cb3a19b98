"""Calls into plugins: what they raise is counted and named, and how long they keep everybody else waiting."""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter
from typing import ParamSpec, TypeVar

from gevent._hub_local import get_hub_if_exists

from app.engine.errors import EngineError
from app.http.errors import ApiError

P = ParamSpec("P")
T = TypeVar("T")
LONGEST_HOLD_S = 0.02
"""Nothing holds the event loop longer than this without being told of."""
ON_PURPOSE: tuple[type[Exception], ...] = (ApiError, EngineError)
"""What a hook raises to refuse a request."""
MAY_REFUSE = frozenset(("reply", "length", "fault", "middleware", "routes"))
"""Those that are asked about a request before its answer."""
log = logging.getLogger(__name__)


class HookFailed(Exception):
    """A hook has raised, or given something that makes no sense. It has been counted and logged."""


class Guard:
    """One hook of one plugin. Its first error and its first long hold are logged, all are counted."""

    def __init__(self, plugin: str, hook: str) -> None:
        self.plugin = plugin
        self.hook = hook
        self._passed = ON_PURPOSE if hook in MAY_REFUSE else ()
        self.calls = 0
        self.errors = 0
        self.long_holds = 0
        self.longest_hold_s = 0.0

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `function`. HookFailed where it raises anything but a refusal of the request."""
        self.calls += 1
        loop_s, begun_s = _loop_s(), perf_counter()
        try:
            return function(*args, **kwargs)
        except self._passed:
            raise
        except (Exception, SystemExit) as error:  # also gunicorn's abort of a worker that a hook keeps busy
            self.failed(error)
            raise HookFailed(self.plugin, self.hook) from None
        finally:
            # A loop that went on meanwhile was held since then only.
            self._held(perf_counter() - begun_s - (_loop_s() - loop_s))

    def failed(self, error: BaseException) -> None:
        """Count an error, and log it if it is the first."""
        self.errors += 1
        if self.errors == 1:
            log.error(
                "plugin %s: hook %s failed; GET /admin/plugins counts how often", *self._names, exc_info=error
            )

    def report(self) -> dict[str, float]:
        """What GET /admin/plugins tells."""
        return {
            "calls": self.calls,
            "errors": self.errors,
            "long_holds": self.long_holds,
            "longest_hold_ms": round(self.longest_hold_s * 1000, 3),
        }

    @property
    def _names(self) -> tuple[str, str]:
        return self.plugin, self.hook

    def _held(self, seconds: float) -> None:
        self.longest_hold_s = max(self.longest_hold_s, seconds)
        if seconds <= LONGEST_HOLD_S:
            return
        self.long_holds += 1
        if self.long_holds == 1:
            log.warning(
                "plugin %s: hook %s held the event loop for %.0f ms, in which nobody was served",
                *self._names,
                seconds * 1000,
            )


def _loop_s() -> float:
    """When this turn of the event loop began, in seconds of some clock; always 0 where there is no loop."""
    hub = get_hub_if_exists()
    return 0.0 if hub is None else float(hub.loop.now())
