"""What an operator does to an engine, and what its metrics say of it.

By HTTP it is tested in `tests/surface/test_lifecycle.py`.
"""

from __future__ import annotations

from collections.abc import Callable

import gevent
import pytest
from gevent.event import Event

from app.engine.core.errors import CallerLeft, MemoryNotResident, PauseNotComplete
from app.engine.core.lifecycle import Lifecycle, PauseMode
from tests.engine.harness import Harness
from tests.kvcache.caches import Replying

STATES = ("awake", "weights_offloaded", "discard_all")


class Operated(Harness):
    """An engine that runs one request for a second, and who operates it."""

    def __init__(self, blocks: int | None = None) -> None:
        super().__init__(slots=1, blocks=blocks, inter_token_latency=0.25)
        self.life = Lifecycle(self.engine, self.recorder, self.cache)
        self.left = Event()

    @property
    def state(self) -> tuple[float, ...]:
        return tuple(self.metric("engine_sleep_state", sleep_state=state) for state in STATES)

    def waits(self, act: Callable[[], None], until: Callable[[], None]) -> Exception | None:
        """Let `act` wait, which `until` puts an end to; the error that it was told."""
        errors: list[Exception] = []

        def acts() -> None:
            try:
                act()
            except Exception as error:
                errors.append(error)

        acting = gevent.spawn(acts)
        gevent.sleep(0.02)
        assert not acting.dead
        until()
        acting.join(5)
        assert acting.dead
        return errors[0] if errors else None


def test_a_pause_aborts_what_runs_or_lets_it_go_on() -> None:
    modes: list[tuple[PauseMode, str | None]] = [("abort", "abort"), ("keep", None)]
    for mode, finish in modes:
        harness = Operated()
        harness.ask("a")
        harness.life.pause(mode, harness.left)
        assert (harness.finish("a"), harness.life.paused) == (finish, True)
        harness.clock.advance(5)
        assert harness.finish("a") == (finish or "length")
        reason = finish or "length"
        assert harness.metric("request_success_total", finished_reason=reason) == 1, "as vLLM's engine"


def test_a_pause_may_await_what_runs_and_nothing_begins_until_the_end_of_it() -> None:
    harness = Operated()
    harness.ask("a")
    assert (
        harness.waits(lambda: harness.life.pause("wait", harness.left), lambda: harness.clock.advance(5))
        is None
    )
    assert harness.finish("a") == "length"
    harness.ask("b")
    harness.clock.advance(5)
    assert harness.gauges() == (0, 1)
    harness.life.resume()
    assert (harness.life.paused, harness.gauges()) == (False, (1, 0))


def test_a_caller_who_leaves_awaits_nothing() -> None:
    harness = Operated()
    harness.ask("a")

    def sleep() -> None:
        harness.life.sleep(1, "wait", harness.left)

    assert isinstance(harness.waits(sleep, harness.left.set), CallerLeft)
    assert (harness.life.is_sleeping, harness.life.paused) == (False, False)
    assert harness.gauges() == (1, 0)


def test_who_falls_asleep_again_holds_up_those_that_come_until_then() -> None:
    harness = Operated()
    harness.life.sleep(1, "abort", harness.left)
    harness.life.wake_up(None)
    harness.ask("a")

    def ends_the_wait() -> None:
        assert harness.life.paused and not harness.life.is_sleeping
        harness.ask("b")
        assert harness.gauges() == (1, 1)
        harness.clock.advance(5)

    assert harness.waits(lambda: harness.life.sleep(1, "wait", harness.left), ends_the_wait) is None
    assert harness.life.is_sleeping and harness.finish("a") == "length"


@pytest.mark.parametrize("level", [0, 1, 2])
def test_levels_of_sleep_are_told_and_end(level: int) -> None:
    harness = Operated(blocks=40)
    assert harness.cache is not None
    harness.life.sleep(level, "abort", harness.left)
    assert harness.life.is_sleeping is (level > 0) and harness.life.paused
    assert harness.cache.caching is (level == 0)
    assert harness.state == tuple(float(it == level) for it in range(3))
    harness.life.wake_up(None)
    assert (harness.life.is_sleeping, harness.life.paused, harness.state) == (False, False, (1, 0, 0))
    assert harness.cache.caching
    for operation in ("sleep", "wake"):
        duration = "sleep_mode_operation_duration_seconds"
        assert harness.metric(f"{duration}_count", operation=operation) == 1
        assert harness.metric(f"{duration}_sum", operation=operation) == 0


def test_parts_wake_one_by_one_and_requests_begin_with_the_last() -> None:
    harness = Operated(blocks=40)
    assert harness.cache is not None
    harness.life.sleep(1, "abort", harness.left)
    harness.life.pause("abort", harness.left)
    for tags in (["weights"], ["scheduling"], ["weights"], ["kv_cache", "everything"], [""]):
        assert not harness.life.wake_up(tags)
        assert harness.life.is_sleeping and harness.life.paused and not harness.cache.caching
    assert harness.life.wake_up(["kv_cache", "scheduling"])
    assert (harness.life.is_sleeping, harness.life.paused, harness.cache.caching) == (
        False,
        False,
        True,
    )


@pytest.mark.parametrize("tags", [None, ["scheduling"], ["weights"], ["everything"]])
def test_asleep_at_level_0_whatever_is_woken_ends_the_pause(tags: list[str] | None) -> None:
    harness = Operated()
    harness.life.sleep(0, "abort", harness.left)
    assert harness.life.wake_up(tags) and not harness.life.paused


def test_a_resume_ends_the_pause_of_a_sleep_and_brings_no_memory_back() -> None:
    harness = Operated()
    harness.life.sleep(1, "abort", harness.left)
    harness.life.resume()
    assert (harness.life.paused, harness.life.is_sleeping) == (False, True)


def test_the_memory_of_the_cache_is_released_once_and_only_in_a_pause_that_is_complete() -> None:
    harness = Operated(blocks=40)
    assert harness.cache is not None
    with pytest.raises(PauseNotComplete):
        harness.life.release_cache()
    harness.ask("a")
    harness.life.pause("keep", harness.left)
    with pytest.raises(PauseNotComplete):
        harness.life.release_cache()
    harness.clock.advance(5)
    harness.life.release_cache()
    assert harness.life.is_sleeping and not harness.cache.caching
    assert harness.state == (1, 0, 0)
    duration = "sleep_mode_operation_duration_seconds"
    assert harness.metric(f"{duration}_count", operation="release_kv_cache_memory") == 1
    assert harness.metric(f"{duration}_sum", operation="release_kv_cache_memory") == 0
    with pytest.raises(MemoryNotResident):
        harness.life.release_cache()
    harness.life.wake_up(["kv_cache"])
    assert not harness.life.is_sleeping and harness.cache.caching


def test_the_prefix_cache_is_not_reset_under_those_who_run() -> None:
    harness = Operated(blocks=40)
    assert Operated().life.reset_prefix_cache()
    harness.ask("a")
    assert not harness.life.reset_prefix_cache()
    assert harness.life.reset_prefix_cache(under_requests=True)
    harness.clock.advance(5)
    assert harness.life.reset_prefix_cache()


@pytest.mark.parametrize("clears", [True, False])
def test_a_pause_empties_the_cache_unless_it_is_not_to(clears: bool) -> None:
    harness = Operated(blocks=40)
    assert harness.cache is not None
    ids = list(range(40))
    harness.ask("a", prompt_ids=ids)
    harness.clock.advance(5)
    harness.life.pause("keep", harness.left, clears)
    found = harness.cache.find(Replying(harness.cache, ids), len(ids))
    assert (not found) is clears
