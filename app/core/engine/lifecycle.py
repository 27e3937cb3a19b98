"""Operator's commands to the simulated engine: sleep, pause and cache."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from gevent.event import Event

from app.core.base.metrics.recorder import Recorder
from app.core.base.overload import ClientLeftError
from app.core.engine.errors import (
    MemoryNotResidentError,
    PauseNotCompleteError,
)
from app.core.engine.sleep import MEMORY, PauseMode, PauseRules, woken_by

if TYPE_CHECKING:
    from app.core.engine.pausable import PausableEngine, ResettableCache

POLL_S = 0.01
"""Interval, in seconds, at which a pause checks that running requests have ended."""


class Operations(Protocol):
    """An operator's commands to a server, for every kind of engine."""

    @property
    def is_sleeping(self) -> bool:
        """True after `sleep`, until `wake_up` has restored all memory."""

    @property
    def paused(self) -> bool:
        """True while no request starts, or after sleep."""

    def sleep(self, level: int, mode: PauseMode, caller_left: Event) -> None:
        """Pauses, and frees the memory of `level` (0: none; 1 and 2: weights and cache)."""

    def release_cache(self) -> None:
        """Frees the KV cache of a paused engine."""

    def wake_up(self, tags: Collection[str] | None) -> bool:
        """Restores the memory of `tags`, by default all memory; returns False if none was freed."""

    def pause(self, mode: PauseMode, caller_left: Event, clear_cache: bool = True) -> None:
        """Starts no more requests, and treats running ones by `mode`."""

    def resume(self) -> None:
        """Starts requests again."""

    def reset_prefix_cache(self, under_requests: bool = False, external: bool = False) -> bool:
        """Empties the prefix cache, and if `external` the tiers outside of the devices.

        Returns False if running requests prevent that.
        """


class Lifecycle:
    """Commands to the simulated engine.

    Sleep at level 0 only pauses; levels 1 and 2 pretend to free memory. Requests that arrive during
    sleep at level 1 or 2 are served, since a simulator needs no weights. During a pause they wait
    or are rejected.
    """

    def __init__(
        self,
        engine: PausableEngine,
        recorder: Recorder,
        cache: ResettableCache | None = None,
        rules: PauseRules = PauseRules(),  # noqa: B008
    ) -> None:
        self._is_paused = False
        """True after `pause` or sleep at level 0: no request starts."""
        self._slept = False
        """True after sleep at level 1 or 2, which `paused` reports as a pause."""
        self._sleepers = 0
        """Calls of `sleep` in progress.

        No request starts meanwhile, or the calls might wait forever.
        """
        self._asleep: set[str] = set()
        self._engine = engine
        self._recorder = recorder
        self._cache = cache
        self._rules = rules

    @property
    def is_sleeping(self) -> bool:
        """True while memory is freed."""
        return bool(self._asleep)

    @property
    def paused(self) -> bool:
        """True from a pause or sleep until a resume, or until all memory is back."""
        return self._is_blocked or self._slept

    @property
    def _is_blocked(self) -> bool:
        return self._is_paused or self._sleepers > 0

    def sleep(self, level: int, mode: PauseMode, caller_left: Event) -> None:
        """Puts the server to sleep at level 0, 1 or 2; running requests are treated as by `pause`.

        A sleep that awaits requests blocks all new ones.

        Raises:
            ClientLeftError: `caller_left` was set before running requests ended; the server
                stays awake.
        """
        self._sleepers += 1
        self._stop(mode)
        try:
            self._settle(mode, caller_left)
            if level == 0:
                self._is_paused = True
            else:
                self._slept = True
                self._free(MEMORY)
            self._recorder.sleeping(level)
            self._recorder.slept("sleep", 0.0)
        finally:
            self._sleepers -= 1
            self._resume_if_unblocked()

    def release_cache(self) -> None:
        """Pretends to free the KV cache's memory; `wake_up` restores it and starts requests again.

        Raises:
            PauseNotCompleteError: The server is not paused, or requests run.
            MemoryNotResidentError: The server sleeps.
        """
        if not self.paused or self._engine.running:
            raise PauseNotCompleteError
        if self._asleep:
            raise MemoryNotResidentError
        self._free({"kv_cache"})
        self._recorder.sleeping(0)
        self._recorder.slept("release_kv_cache_memory", 0.0)

    def wake_up(self, tags: Collection[str] | None) -> bool:
        """Restores all memory, or the memory that `tags` name.

        Restores nothing if one of the tags is not asleep. Returns True, and resumes requests, when
        all memory is back.
        """
        self._asleep -= woken_by(tags, self._asleep)
        if self._cache is not None and "kv_cache" not in self._asleep:
            self._cache.caching = True
        if not self._asleep:
            self._recorder.sleeping(None)
            self.resume()
        self._recorder.slept("wake", 0.0)
        return not self._asleep

    def pause(self, mode: PauseMode, caller_left: Event, clear_cache: bool = True) -> None:
        """Starts no more requests; running ones are aborted, awaited (`wait`) or kept (`keep`).

        Kept requests stand still if they share steps.

        Empties the prefix cache afterwards if `clear_cache`.

        Raises:
            ClientLeftError: `caller_left` was set before running requests ended; the server stays
                paused.
        """
        self._is_paused = True
        self._stop(mode)
        self._engine.refuses_requests = self._rules.refuses(mode)
        self._settle(mode, caller_left)
        if clear_cache:
            self.reset_prefix_cache(under_requests=True, external=True)

    def resume(self) -> None:
        """Starts requests again."""
        self._is_paused = False
        self._slept = False
        self._engine.refuses_requests = False
        self._resume_if_unblocked()

    def reset_prefix_cache(self, under_requests: bool = False, external: bool = False) -> bool:
        """See `Operations`; `under_requests` empties the cache while requests run, too."""
        if self._cache is None:
            return True
        if under_requests:
            self._engine.executor.preempt_all()
        return self._cache.reset(under_requests, external)

    def _free(self, memory: Collection[str]) -> None:
        self._asleep |= set(memory)
        if self._cache is not None:
            # Published with the next step, as in vLLM.
            self.reset_prefix_cache(under_requests=True, external=True)
            self._cache.caching = False

    def _stop(self, mode: PauseMode) -> None:
        """Starts no more requests; kept ones compute nothing."""
        self._engine.executor.pause()
        if mode == "keep":
            self._engine.executor.hold()

    def _settle(self, mode: PauseMode, caller_left: Event) -> None:
        if mode == "abort":
            self._engine.interrupt(counted=True)
        while mode == "wait" and self._is_blocked and self._engine.running:
            if caller_left.wait(POLL_S):
                raise ClientLeftError

    def _resume_if_unblocked(self) -> None:
        if not self._is_blocked:
            self._engine.executor.resume()
