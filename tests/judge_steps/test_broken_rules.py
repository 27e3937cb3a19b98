"""A rule of the scheduler that is broken on purpose is found by the recorded loads."""

from collections.abc import Callable
from typing import Any

import pytest

from app.core.engine.batch import Batch
from app.core.engine.kvcache.block_pool import BlockPool
from app.core.engine.kvcache.cache import KVCacheManager
from app.core.engine.scheduler import Scheduler
from app.core.engine.waiting_queue import WaitingQueue
from tests.judge_steps.difference import first_difference
from tests.judge_steps.driving import drive
from tests.judge_steps.our_engine import OurEngine, rules_of
from tests.judge_steps.records import read_records

VERSION = "0.32"


def _break_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most important request is preempted first."""
    monkeypatch.setattr(
        "app.core.engine.scheduler._preemption_order",
        lambda sequence: (-sequence.priority, -sequence.arrived),
    )


def _break_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Scheduler, "_spare_blocks", lambda self, sequence: 0)


def _break_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that is alone is cut, too."""
    limit = Scheduler._limit_prompts

    def limit_always(self: Scheduler[Any], threshold: int) -> None:
        limit(self, threshold)
        self._prompt_limit = threshold

    monkeypatch.setattr(Scheduler, "_limit_prompts", limit_always)


def _break_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block of the last token of a prompt is found."""
    find = KVCacheManager.find
    monkeypatch.setattr(
        KVCacheManager, "find", lambda self, sequence, tokens: find(self, sequence, tokens + 1)
    )


def _break_eviction(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first block of a sequence is reused before the last one."""
    release = BlockPool.release
    monkeypatch.setattr(
        BlockPool, "release", lambda self, blocks: release(self, list(reversed(blocks)))
    )


def _break_overruns(monkeypatch: pytest.MonkeyPatch) -> None:
    """No token is computed after a stop."""
    end = Scheduler._end

    def end_now(self: Scheduler[Any], sequence: Any, batch: Batch[Any], **options: bool) -> None:
        sequence.stops = False
        end(self, sequence, batch, **options)

    monkeypatch.setattr(Scheduler, "_end", end_now)


def _break_adapters(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request whose adapter cannot be loaded blocks the queue."""
    allowed = WaitingQueue._allowed

    def allow_first(self: WaitingQueue[Any], heads: list[Any]) -> list[Any]:
        return allowed(self, [min(heads)]) if heads else []

    monkeypatch.setattr(WaitingQueue, "_allowed", allow_first)


BREAKS = [
    _break_victims,
    _break_watermark,
    _break_chunks,
    _break_hits,
    _break_eviction,
    _break_overruns,
    _break_adapters,
]


@pytest.mark.parametrize("break_rule", BREAKS)
def test_a_broken_rule_is_found(
    break_rule: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_rule(monkeypatch)
    kinds = set()
    for record in read_records(VERSION):
        if record.load.groups:
            continue
        try:
            steps = drive(record.load, OurEngine(record.load, rules_of(VERSION)))
            is_equal = first_difference(record.steps, steps) is None
        except (AssertionError, LookupError, ValueError):  # a broken rule may break later ones
            is_equal = False
        if not is_equal:
            kinds.add(record.load.kind)
    assert kinds
