"""Sleep and wake, pause and resume, drain (vllm-api.md sections 2 and 10)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from gevent.event import Event

from app.engine.cache_manager import KVCacheManager
from app.engine.engine import Engine
from app.engine.errors import CallerLeft, MemoryNotResident, PauseNotComplete
from app.engine.wire import MEMORY, PauseMode, woken_by
from app.metrics.recorder import Recorder

LOOK_AGAIN_S = 0.01
"""How often a pause looks whether all that ran is over."""


class Operations(Protocol):
    """What an operator does to a server, whichever engine it has."""

    @property
    def is_sleeping(self) -> bool:
        """True until all memory that sleep put away is back."""

    @property
    def paused(self) -> bool:
        """True from a pause or sleep until requests are resumed, or all memory is back."""

    def sleep(self, level: int, mode: PauseMode, caller_left: Event) -> None:
        """Fall asleep at level 0, 1 or 2; running requests are treated as by `pause`."""

    def release_cache(self) -> None:
        """Free the memory of the KV cache of a paused engine."""

    def wake_up(self, tags: Collection[str] | None) -> bool:
        """Bring back all memory, or what `tags` name: nothing where one of them does not sleep.

        Returns True, and requests begin again, when all memory is back.
        """

    def pause(self, mode: PauseMode, caller_left: Event, clear_cache: bool = True) -> None:
        """Begin no more requests. Running ones are aborted, or (`wait`) awaited, or (`keep`) go on.

        The prefix cache is emptied then, if it is to be. CallerLeft when `caller_left` is set before they are
        over.
        """

    def resume(self) -> None:
        """Begin requests again."""

    def reset_prefix_cache(self, under_requests: bool = False) -> bool:
        """Forget all that is cached; False while requests run, unless it is done `under_requests`."""

    def drain(self) -> None:
        """Admit nothing more."""


class Lifecycle:
    """What an operator does to a server. Level 0 of sleep only pauses; 1 and 2 play that memory was freed.

    Requests that come while the server sleeps at level 1 or 2 are served: a simulator has no weights to
    miss (simulator.md 2.13). While it is paused they wait.
    """

    def __init__(self, engine: Engine, recorder: Recorder, cache: KVCacheManager | None = None) -> None:
        self._is_paused = False
        """By `pause`, or by sleep at level 0: nothing begins."""
        self._slept = False
        """By sleep at level 1 or 2, which is a pause to those who ask."""
        self._sleepers = 0
        """Calls of `sleep` under way: nothing begins meanwhile, or they might wait for ever."""
        self._cache = cache
        self._asleep: set[str] = set()
        self._engine = engine
        self._recorder = recorder

    @property
    def is_sleeping(self) -> bool:
        return bool(self._asleep)

    @property
    def paused(self) -> bool:
        return self._holds or self._slept

    @property
    def _holds(self) -> bool:
        """True while no request begins to run."""
        return self._is_paused or self._sleepers > 0

    def sleep(self, level: int, mode: PauseMode, caller_left: Event) -> None:
        """See `Operations`. A sleep that awaits requests holds up all that come meanwhile.

        CallerLeft, and awake, when `caller_left` is set first.
        """
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
        if self._asleep:
            raise MemoryNotResident
        if self._cache is not None:
            self._cache.sleep()
        self._asleep.add("kv_cache")
        self._recorder.sleeping(0)
        self._recorder.slept("release_kv_cache_memory", 0.0)

    def wake_up(self, tags: Collection[str] | None) -> bool:
        self._asleep -= woken_by(tags, self._asleep)
        if self._cache is not None and "kv_cache" not in self._asleep:
            self._cache.wake()
        if not self._asleep:
            self._recorder.sleeping(None)
            self.resume()
        self._recorder.slept("wake", 0.0)
        return not self._asleep

    def pause(self, mode: PauseMode, caller_left: Event, clear_cache: bool = True) -> None:
        """See `Operations`. Nothing begins even when the caller left."""
        self._is_paused = True
        self._engine.pause()
        self._settle(mode, caller_left)
        if clear_cache:
            self.reset_prefix_cache(under_requests=True)

    def resume(self) -> None:
        self._is_paused = self._slept = False
        self._go_on()

    def reset_prefix_cache(self, under_requests: bool = False) -> bool:
        """See `Operations`. Requests that run keep their blocks, which are cached no more."""
        return self._cache is None or self._cache.reset(under_requests)

    def drain(self) -> None:
        self._engine.drain()

    def _settle(self, mode: PauseMode, caller_left: Event) -> None:
        if mode == "abort":
            self._engine.interrupt(counted=True)
        elif mode == "wait":
            while self._holds and self._engine.running:
                if caller_left.wait(LOOK_AGAIN_S):
                    raise CallerLeft

    def _fall_asleep(self, level: int) -> None:
        if level == 0:
            self._is_paused = True
        else:
            self._slept, self._asleep = True, set(MEMORY)
            if self._cache is not None:
                self._cache.sleep()
        self._recorder.sleeping(level)
        self._recorder.slept("sleep", 0.0)

    def _go_on(self) -> None:
        if not self._holds:
            self._engine.resume()
