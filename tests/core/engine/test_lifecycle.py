"""What an operator does to an engine, and what its metrics say; by HTTP:

surface/wire/test_lifecycle.py.
"""

import pytest
from gevent.event import Event

from app.core.engine.errors import EnginePausedError
from app.core.engine.lifecycle import Lifecycle
from app.core.engine.outputs import Failed
from app.core.engine.sleep import PauseRules
from app.core.versions.chain import played_version
from tests.core.engine.harness import Harness
from tests.core.kvcache.caches import Replying

STATES = ("awake", "weights_offloaded", "discard_all")


class Operated(Harness):
    """An engine that runs one request for a second, and who operates it."""

    def __init__(self, blocks: int | None = None, **latency: float) -> None:
        super().__init__(slots=1, blocks=blocks, inter_token_latency=0.25, **latency)
        self.life = Lifecycle(self.engine, self.recorder, self.cache)
        self.left = Event()

    @property
    def state(self) -> tuple[float, ...]:
        return tuple(self.metric("engine_sleep_state", sleep_state=state) for state in STATES)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_sleep_level_is_reported_until_wake_up(level: int) -> None:
    harness = Operated(blocks=40)
    assert harness.cache is not None
    harness.life.sleep(level, "abort", harness.left)
    assert harness.life.is_sleeping is (level > 0) and harness.life.paused
    assert harness.cache.caching is (level == 0)
    assert harness.state == tuple(float(other_level == level) for other_level in range(3))
    harness.life.wake_up(None)
    assert (harness.life.is_sleeping, harness.life.paused, harness.state) == (
        False,
        False,
        (1, 0, 0),
    )
    assert harness.cache.caching
    for operation in ("sleep", "wake"):
        duration = "sleep_mode_operation_duration_seconds"
        assert harness.metric(f"{duration}_count", operation=operation) == 1
        assert harness.metric(f"{duration}_sum", operation=operation) == 0


@pytest.mark.parametrize("tags", [None, ["scheduling"], ["weights"], ["everything"]])
def test_wake_up_with_any_or_no_tags_ends_sleep_level_0(tags: list[str] | None) -> None:
    harness = Operated()
    harness.life.sleep(0, "abort", harness.left)
    assert harness.life.wake_up(tags) and not harness.life.paused


def test_resume_ends_the_pause_but_not_the_sleep_of_an_engine() -> None:
    harness = Operated()
    harness.life.sleep(1, "abort", harness.left)
    harness.life.resume()
    assert (harness.life.paused, harness.life.is_sleeping) == (False, True)


def test_prefix_cache_is_not_reset_while_requests_run() -> None:
    harness = Operated(blocks=40)
    assert Operated().life.reset_prefix_cache()
    harness.ask("a")
    assert not harness.life.reset_prefix_cache()
    assert harness.life.reset_prefix_cache(under_requests=True)
    harness.clock.advance(5)
    assert harness.life.reset_prefix_cache()


@pytest.mark.parametrize("clears", [True, False])
def test_pause_clears_the_prefix_cache_only_on_request(clears: bool) -> None:
    harness = Operated(blocks=40)
    assert harness.cache is not None
    ids = list(range(40))
    harness.ask("a", prompt_ids=ids)
    harness.clock.advance(5)
    harness.life.pause("keep", harness.left, clears)
    cached = harness.cache.find(Replying(harness.cache, ids), len(ids))
    assert (not cached) is clears


class Refusing(Operated):
    """An engine whose pauses reject new requests."""

    def __init__(self, **latency: float) -> None:
        super().__init__(**latency)
        self.life = Lifecycle(self.engine, self.recorder)

    def is_refused(self, request_id: str) -> bool:
        """Returns whether a request that arrives now fails because of a pause."""
        self.ask(request_id)
        events = self.outputs(request_id)
        if not events:
            return False
        [event] = events
        return isinstance(event, Failed) and isinstance(event.error, EnginePausedError)


def test_requests_during_a_pause_are_rejected_only_in_abort_mode() -> None:
    harness = Refusing()
    harness.life.pause("keep", harness.left)
    assert not harness.is_refused("kept")
    harness.life.pause("abort", harness.left)
    assert harness.finish("kept") == "abort"
    assert harness.is_refused("a")
    harness.life.sleep(0, "abort", harness.left)
    assert harness.is_refused("b")
    harness.life.pause("keep", harness.left)
    assert not harness.is_refused("c")
    harness.life.resume()
    harness.clock.advance(5)
    assert harness.finish("c") == "length"
    assert harness.metric("request_success_total", finished_reason="error") == 0


def test_requests_wait_during_sleep() -> None:
    harness = Refusing()
    harness.life.sleep(0, "abort", harness.left)
    assert not harness.is_refused("a")


def test_requests_wait_during_an_abort_pause_in_versions_before_0_33() -> None:
    harness = Operated()
    rules = played_version("0.32").rules(PauseRules)
    harness.life = Lifecycle(harness.engine, harness.recorder, rules=rules)
    harness.life.pause("abort", harness.left)
    harness.ask("a")
    assert harness.outputs("a") == []
    assert harness.gauges() == (0, 1)
