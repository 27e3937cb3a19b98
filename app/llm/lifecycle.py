"""Pause and resume, sleep and wake: what an operator does to an engine that stays."""

from __future__ import annotations

from collections.abc import Callable, Collection

from app.engine.wire import MEMORY, woken_by
from app.llm.config import Checkpoint
from app.llm.engine import LLMEngine


class Lifecycle:
    """Level 0 of sleep only pauses; 1 and 2 free the memory of weights and KV cache.

    Weights are read from their files again, at both levels. Who waits or runs when it falls asleep goes on
    afterwards, computed anew; the cache is forgotten.
    """

    def __init__(self, engine: LLMEngine, reload: Callable[[], Checkpoint]) -> None:
        self._engine, self._reload = engine, reload
        self._asleep: set[str] = set()
        self._level: int | None = None

    @property
    def level(self) -> int | None:
        """Of its sleep; None when all is back."""
        return self._level

    @property
    def paused(self) -> bool:
        """No request begins to run."""
        return self._engine.scheduler.paused

    def pause(self) -> None:
        self._engine.scheduler.paused = True

    def resume(self) -> None:
        """Does nothing while memory is put away."""
        self._engine.scheduler.paused = bool(self._asleep)
        if not self._asleep:
            self._level = None

    def sleep(self, level: int) -> None:
        """Level 0, 1 or 2; asleep already, it falls no deeper than that."""
        self.pause()
        self._level = max(level, self._level or 0)
        if not level:
            return
        self._engine.halted = True
        self._engine.preempt_all()
        self._engine.reset_prefix_cache()
        if "weights" not in self._asleep:
            self._engine.runner.free_weights()
        if "kv_cache" not in self._asleep:
            self._engine.runner.free_cache()
        self._asleep = set(MEMORY)

    def wake_up(self, tags: Collection[str] | None) -> bool:
        """Bring everything back, or what `tags` name; requests begin again, and it is True, when all is back.

        ModelLoadError when weights or memory are no longer there.
        """
        wanted = woken_by(tags, self._asleep)
        if "weights" in wanted:
            self._engine.runner.load_weights(self._reload())
            self._asleep.remove("weights")
        if "kv_cache" in wanted:
            self._engine.runner.make_cache()
            self._asleep.remove("kv_cache")
        self._engine.halted = bool(self._asleep)
        if not self._asleep:
            self.resume()
        return not self._asleep
