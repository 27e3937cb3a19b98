"""The guard of one plugin's hook: counts its calls, its errors, and how long it holds the event loop."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import ParamSpec, TypeVar

from gevent._hub_local import get_hub_if_exists

from app.engine.errors import EngineError
from app.http.errors import ApiError
from config.declaration import ConfigError

P = ParamSpec("P")
T = TypeVar("T")
LONGEST_HOLD_S = 0.02
"""Seconds for which a hook may hold the event loop without a warning; streams are late by as much."""
REFUSALS: tuple[type[Exception], ...] = (ApiError, EngineError)
"""Errors by which a hook refuses a request on purpose."""
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
        """Returns `function` for calls by the server; `otherwise` answers the calls in which it fails.

        With `may_refuse`, errors that refuse the request are no failures, and are raised.
        """
        passed = REFUSALS if may_refuse else ()

        def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
            self.calls += 1
            loop_s, begun_s = _loop_s(), perf_counter()
            try:
                return function(*args, **kwargs)
            except passed:
                raise
            except (Exception, SystemExit) as error:  # also gunicorn's abort of a worker that is kept busy
                self._failed(error)
            finally:
                # A loop that went on meanwhile was held since then only.
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
    """Answers instead of a hook that failed where nothing is an answer."""


@contextmanager
def start_fails(plugin: str, hook: str, when: str = " at the start") -> Iterator[None]:
    """Turns an error within the block into a ConfigError of one line that names the plugin and its hook."""
    try:
        yield
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"plugin {plugin}: hook {hook} failed{when}: {reason}") from None


def _loop_s() -> float:
    """Start of this turn of the event loop, in seconds of some clock; always 0 where there is no loop."""
    hub = get_hub_if_exists()
    return 0.0 if hub is None else float(hub.loop.now())
