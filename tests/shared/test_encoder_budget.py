"""Steps that encode images; `fidelity/judge_steps` compares them with those of vLLM."""

from collections.abc import Mapping
from typing import Any

import pytest

from app.core.engine.batch import Batch, SchedulerLimits, SchedulerRules, SequenceState
from app.core.engine.kvcache.counted_blocks import CountedBlocks
from app.core.engine.plain_scheduler import PlainScheduler
from app.core.engine.schedulers import make_scheduler
from app.core.engine.waiting_queue import WaitingQueue
from app.shared.step_policies.encoder_budget import (
    EncoderBudget,
    EncoderItem,
    EncoderLimits,
    EncoderSeconds,
)

CAT = EncoderItem("cat", start=10, length=50)
DOG = EncoderItem("dog", start=10, length=50)

SECONDS = EncoderSeconds(step=0.01, embedding=0.001, embedding_pair=1e-5)


class Engine:
    """A scheduler with an encoder budget, whose steps do not overlap."""

    def __init__(
        self,
        prompts: Mapping[str, list[EncoderItem]],
        *,
        rules: SchedulerRules | None = None,
        max_num_batched_tokens: int = 200,
        **encoder: Any,
    ) -> None:
        limits = SchedulerLimits(
            max_num_batched_tokens=max_num_batched_tokens, rules=rules or SchedulerRules()
        )
        encoder = {"budget": 60, "cache_size": 60, "overlaps_steps": False} | encoder
        items: dict[SequenceState, list[EncoderItem]] = {}
        self.policy: EncoderBudget[SequenceState] = EncoderBudget(
            EncoderLimits(**encoder), limits, items.__getitem__, SECONDS
        )
        queue: WaitingQueue[SequenceState] = WaitingQueue()
        blocks = CountedBlocks(1000, 16, caching=False)
        self.scheduler = make_scheduler(limits, blocks, queue, [self.policy])
        self.sequences: dict[str, SequenceState] = {}
        for name, items_in in prompts.items():
            sequence = SequenceState(100, 3)
            items[sequence] = items_in
            self.sequences[name] = sequence
            queue.add(sequence)

    def step(self) -> dict[str, int]:
        """Runs a step; returns the tokens computed so far of each prompt."""
        batch: Batch[SequenceState] | None = self.scheduler.schedule()
        assert batch is not None
        self.encoded = [
            name for name, sequence in self.sequences.items() if sequence in self.policy.encoded
        ]
        self.encoder_s = batch.encoder_s
        self.scheduler.complete(batch)
        return {name: sequence.computed for name, sequence in self.sequences.items()}


def test_prompt_is_cut_before_an_image_that_the_step_cannot_encode() -> None:
    engine = Engine({"first": [CAT], "second": [DOG]})
    assert engine.step() == {"first": 100, "second": 10}
    assert engine.encoded == ["first"]
    assert engine.step()["second"] == 100
    assert engine.encoded == ["second"]


def test_equal_image_is_in_the_cache() -> None:
    engine = Engine({"first": [CAT], "second": [CAT]})
    assert engine.step() == {"first": 100, "second": 100}
    assert engine.encoded == ["first"]


def test_full_cache_lets_a_prompt_wait_until_an_image_is_computed() -> None:
    split = EncoderItem("cat", start=0, length=50)
    whole = EncoderItem("dog", start=0, length=50)
    engine = Engine({"first": [split], "second": [whole]}, budget=200, max_num_batched_tokens=30)
    assert engine.step() == {"first": 30, "second": 0}
    assert engine.step() == {"first": 60, "second": 0}
    assert engine.step() == {"first": 90, "second": 0}
    assert engine.step() == {"first": 100, "second": 20}


@pytest.mark.parametrize(("passes", "third"), [(True, 100), (False, 0)])
def test_prompt_without_images_passes_one_that_waits_for_the_encoder(
    passes: bool, third: int
) -> None:
    at_start = EncoderItem("dog", start=0, length=50)
    engine = Engine(
        {"first": [CAT], "second": [at_start], "third": []},
        rules=SchedulerRules(passes_waiting_items=passes),
        max_num_batched_tokens=300,
    )
    assert engine.step() == {"first": 100, "second": 0, "third": third}


@pytest.mark.parametrize(("whole", "computed"), [(True, [10, 50]), (False, [40, 80])])
def test_image_is_not_split_if_the_option_says_so(whole: bool, computed: list[int]) -> None:
    item = EncoderItem("cat", start=10, length=40)
    engine = Engine({"a": [item]}, max_num_batched_tokens=40, disable_chunked_mm_input=whole)
    assert [engine.step()["a"], engine.step()["a"]] == computed


def test_image_larger_than_the_cache_does_not_wait_forever() -> None:
    engine = Engine({"a": [EncoderItem("cat", start=0, length=90)]})
    assert engine.step() == {"a": 100}


def test_decodes_advance_in_bulk_beside_an_encoder_budget() -> None:
    assert isinstance(Engine({"a": [CAT]}).scheduler, PlainScheduler)


def test_removed_prompt_gives_its_room_back() -> None:
    split = EncoderItem("cat", start=0, length=50)
    engine = Engine({"first": [split], "second": [DOG]}, max_num_batched_tokens=30)
    engine.step()
    engine.scheduler.remove(engine.sequences["first"])
    engine.step()
    assert engine.step()["second"] == 60


@pytest.mark.parametrize(
    ("lengths", "seconds"),
    [([2], 0.01), ([50], 0.075), ([20, 30], 0.063)],
    ids=["launches decide", "one image", "pairs within each image alone"],
)
def test_step_takes_the_time_of_the_images_that_it_encodes(
    lengths: list[int], seconds: float
) -> None:
    items = []
    start = 10
    for length in lengths:
        items.append(EncoderItem(f"image {start}", start, length))
        start += length
    engine = Engine({"first": items})
    engine.step()
    assert engine.encoder_s == pytest.approx(seconds)
    engine.step()
    assert engine.encoder_s == 0


def test_image_in_the_cache_takes_no_time() -> None:
    engine = Engine({"first": [CAT], "second": [CAT]})
    engine.step()
    assert engine.encoder_s == pytest.approx(SECONDS.of([50]))
