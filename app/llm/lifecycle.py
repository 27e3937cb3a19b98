"""Pause and resume, sleep and wake: what an operator does to an engine that stays."""

from __future__ import annotations

from collections.abc import Callable, Collection

from app.engine.errors import InvalidSleepLevel, UnknownWakeTags
from app.engine.wire import DEEPEST_SLEEP, WAKE_TAGS
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
        """Does nothing while it sleeps."""
        self._engine.scheduler.paused = bool(self._asleep)

    def sleep(self, level: int) -> None:
        """InvalidSleepLevel for another level; asleep already, it falls no deeper than that."""
        if not 0 <= level <= DEEPEST_SLEEP:
            raise InvalidSleepLevel(level)
        self.pause()
        self._level = max(level, self._level or 0)
        if not level:
            self._asleep.add("scheduling")
            return
        self._engine.halted = True
        self._engine.preempt_all()
        self._engine.reset_prefix_cache()
        if "weights" not in self._asleep:
            self._engine.runner.free_weights()
        if "kv_cache" not in self._asleep:
            self._engine.runner.free_cache()
        self._asleep = set(WAKE_TAGS)

    def wake_up(self, tags: Collection[str] | None) -> None:
        """Bring everything back, or what `tags` name; requests begin again when all is back.

        UnknownWakeTags for an unknown one, ModelLoadError when weights or memory are no longer there.
        """
        if tags is not None and not WAKE_TAGS.issuperset(tags):
            raise UnknownWakeTags(WAKE_TAGS)
        wanted = self._asleep & (WAKE_TAGS if tags is None else set(tags))
        was_put_away = self._asleep & {"weights", "kv_cache"}
        if "weights" in wanted:
            self._engine.runner.load_weights(self._reload())
            self._asleep.remove("weights")
        if "kv_cache" in wanted:
            self._engine.runner.make_cache()
            self._asleep.remove("kv_cache")
        self._engine.halted = bool(self._asleep & {"weights", "kv_cache"})
        # The last of what was put away wakes up the scheduling, too, as vLLM has it.
        if "scheduling" in wanted or (was_put_away and not self._engine.halted):
            self._asleep.discard("scheduling")
        if not self._asleep:
            self._level = None
            self.resume()
