"""Rules of the scheduler that are broken on purpose, so that the judge must find them."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from app.core.engine.batch import Batch
from app.core.engine.kvcache.block_pool import BlockPool
from app.core.engine.kvcache.cache import KVCacheManager
from app.core.engine.scheduler import AdmittingScheduler, Scheduler
from app.core.engine.waiting_queue import WaitingQueue
from app.core.versions.chain import PlayedVersion
from app.shared.step_policies.encoder_budget import EncoderBudget
from fidelity.judge_steps.difference import first_difference
from fidelity.judge_steps.driving import drive
from fidelity.judge_steps.load import Load, Steps
from fidelity.judge_steps.our_engine import OurEngine


def _break_victims(monkeypatch: pytest.MonkeyPatch) -> None:
    """The most important request is preempted first."""
    monkeypatch.setattr(
        "app.core.engine.exact_scheduler._preemption_order",
        lambda sequence: (-sequence.priority, -sequence.arrived),
    )


def _break_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    """An admission leaves no blocks free."""
    admit = AdmittingScheduler._admit

    def admit_all(self: AdmittingScheduler[Any], batch: Batch[Any]) -> bool:
        self._watermark = 0
        return admit(self, batch)

    monkeypatch.setattr(AdmittingScheduler, "_admit", admit_all)


def _break_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt that is alone is cut, too."""
    limit = AdmittingScheduler._limit_prompts

    def limit_always(self: AdmittingScheduler[Any], threshold: int) -> None:
        limit(self, threshold)
        self._prompt_limit = threshold

    monkeypatch.setattr(AdmittingScheduler, "_limit_prompts", limit_always)


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


def _break_encoder(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image stays in the encoder cache until its request ends."""
    monkeypatch.setattr(EncoderBudget, "complete_step", lambda self, batch: None)


BREAKS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "victims": _break_victims,
    "watermark": _break_watermark,
    "chunks": _break_chunks,
    "hits": _break_hits,
    "eviction": _break_eviction,
    "overruns": _break_overruns,
    "adapters": _break_adapters,
    "encoder": _break_encoder,
}


def differing_loads(
    break_rule: Callable[[pytest.MonkeyPatch], None],
    version: PlayedVersion,
    loads: Iterable[tuple[Load, Steps]],
) -> Sequence[Load]:
    """Returns the loads whose steps differ from vLLM's while a rule is broken."""
    differing = []
    with pytest.MonkeyPatch.context() as monkeypatch:
        break_rule(monkeypatch)
        for load, vllm in loads:
            try:
                steps = drive(load, OurEngine(load, version))
                is_equal = first_difference(vllm, steps) is None
            except (AssertionError, LookupError, ValueError):  # it may break later rules
                is_equal = False
            if not is_equal:
                differing.append(load)
    return differing
