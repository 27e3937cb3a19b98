"""Sleep and wake, pause and resume, drain (vllm-api.md sections 2 and 10)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from gevent.event import Event

from app.engine.cache_manager import KVCacheManager
from app.engine.engine import Engine
from app.engine.errors import (
    CallerLeft,
    InvalidSleepLevel,
    MemoryNotResident,
    PauseNotComplete,
    UnknownWakeTags,
)
from app.engine.wire import DEEPEST_SLEEP, WAKE_TAGS, PauseMode
from app.metrics.recorder import Recorder

LOOK_AGAIN_S = 0.01
"""How often a pause looks whether all that ran is over."""


class Operations(Protocol):
    """What an operator does to a server, whichever engine it has."""

    @property
    def is_sleeping(self) -> bool:
        """True until everything that sleep put away is back."""

    @property
    def paused(self) -> bool:
        """True while no request begins to run."""

    def sleep(self, level: int, mode: PauseMode, caller_left: Event) -> None:
        """Fall asleep; running requests are treated as by `pause`."""

    def release_cache(self) -> None:
        """Free the memory of the KV cache of a paused engine."""

    def wake_up(self, tags: Collection[str] | None) -> None:
        """Wake up, or bring back only what `tags` name."""

    def pause(self, mode: PauseMode, caller_left: Event) -> None:
        """Begin no more requests. Running ones are aborted, or (`wait`) awaited, or (`keep`) go on.

        CallerLeft when `caller_left` is set before they are over.
        """

    def resume(self) -> None:
        """Begin requests again."""

    def reset_prefix_cache(self) -> bool:
        """Forget all that is cached; False while requests run."""

    def drain(self) -> None:
        """Admit nothing more."""


class Lifecycle:
    """What an operator does to a server. Level 0 of sleep only pauses; 1 and 2 play that memory was freed.

    Requests that come while the server sleeps at level 1 or 2 are served: a simulator has no weights to
    miss (simulator.md 2.13). While it is paused they wait.
    """

    def __init__(self, engine: Engine, recorder: Recorder, cache: KVCacheManager | None = None) -> None:
        self._is_paused = False
        self._sleepers = 0
        """Calls of `sleep` under way: nothing begins meanwhile, or they might wait for ever."""
        self._cache = cache
        self._asleep: set[str] = set()
        self._engine = engine
        self._recorder = recorder

    @property
    def is_sleeping(self) -> bool:
        """True until everything that sleep put away is back."""
        return bool(self._asleep)

    @property
    def paused(self) -> bool:
        """True while no request begins to run."""
        return self._is_paused or self._sleepers > 0

    def sleep(self, level: int, mode: PauseMode, caller_left: Event) -> None:
        """Fall asleep; running requests are treated as by `pause`. InvalidSleepLevel for another level.

        Who awaits them holds up all that come meanwhile. CallerLeft, and awake, when `caller_left` is set
        first.
        """
        if not 0 <= level <= DEEPEST_SLEEP:
            raise InvalidSleepLevel(level)
        self._sleepers += 1
        self._engine.pause()
        try:
            self._settle(mode, caller_left)
            self._fall_asleep(level)
        finally:
            self._sleepers -= 1
            self._go_on()

    def release_cache(self) -> None:
        """Play that the memory of the KV cache was freed: `wake_up` brings it back, and requests begin again.

        PauseNotComplete unless the server is paused and nothing runs, MemoryNotResident when it sleeps.
        """
        if not self.paused or self._engine.running:
            raise PauseNotComplete
        if not self._asleep <= {"scheduling"}:
            raise MemoryNotResident
        if self._cache is not None:
            self._cache.sleep()
        self._asleep.add("kv_cache")
        self._recorder.sleeping(0)
        self._recorder.slept("release_kv_cache_memory", 0.0)

    def wake_up(self, tags: Collection[str] | None) -> None:
        """Wake up, or bring back only what `tags` name; requests begin again when all is back.

        UnknownWakeTags for an unknown one.
        """
        if tags is not None and not WAKE_TAGS.issuperset(tags):
            raise UnknownWakeTags(WAKE_TAGS)
        if self._cache is not None and (tags is None or "kv_cache" in tags):
            self._cache.wake()
        was_paused_by_sleep = self._asleep == {"scheduling"}
        self._asleep -= WAKE_TAGS if tags is None else set(tags)
        if self._asleep == {"scheduling"} and not was_paused_by_sleep:
            self._asleep.clear()
        if not self._asleep:
            self._recorder.sleeping(None)
            self.resume()
        self._recorder.slept("wake", 0.0)

    def pause(self, mode: PauseMode, caller_left: Event) -> None:
        """Begin no more requests. Running ones are aborted, or (`wait`) awaited, or (`keep`) go on.

        CallerLeft when `caller_left` is set before they are over; nothing begins all the same.
        """
        self._is_paused = True
        self._engine.pause()
        self._settle(mode, caller_left)

    def resume(self) -> None:
        """Begin requests again, those that waited first."""
        self._is_paused = False
        self._go_on()

    def reset_prefix_cache(self) -> bool:
        """Forget all that is cached; False while requests run."""
        return self._cache is None or self._cache.reset()

    def drain(self) -> None:
        """Admit nothing more; what was admitted goes on to its end."""
        self._engine.drain()

    def _settle(self, mode: PauseMode, caller_left: Event) -> None:
        if mode == "abort":
            self._engine.interrupt(counted=True)
        elif mode == "wait":
            while self.paused and self._engine.running:
                if caller_left.wait(LOOK_AGAIN_S):
                    raise CallerLeft

    def _fall_asleep(self, level: int) -> None:
        if level == 0:
            self._is_paused = True
        elif self._cache is not None:
            self._cache.sleep()
        self._asleep = set(WAKE_TAGS) if level else {"scheduling"}
        self._recorder.sleeping(level)
        self._recorder.slept("sleep", 0.0)

    def _go_on(self) -> None:
        if not self.paused:
            self._engine.resume()
