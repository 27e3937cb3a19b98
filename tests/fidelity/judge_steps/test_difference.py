"""Tests of the one known difference: other differences are not taken for it."""

import pytest

from fidelity.judge_steps.difference import (
    Difference,
    is_exhausted_pool,
    is_late_block,
)
from fidelity.judge_steps.load import Load, Plan, Step, Steps

SIZE = 4


def _load() -> Load:
    plan = Plan(name="a", request=1, step=0, prompt=[1, 2, 3], output_tokens=8, max_tokens=8)
    return Load(
        number=0,
        kind="choices",
        block_size=SIZE,
        blocks=10,
        max_num_seqs=2,
        max_num_batched_tokens=64,
        is_asynchronous=False,
        plans=[plan],
    )


@pytest.mark.parametrize(
    ("our_cached", "stored", "is_known"),
    [(0, 0, True), (0, 1, False), (4, 0, False), (None, 0, True), (None, 1, False)],
    ids=[
        "late block",
        "other block",
        "as many blocks",
        "no admission",
        "no admission, other block",
    ],
)
def test_only_a_block_that_the_step_caches_is_late(
    our_cached: int | None, stored: int, is_known: bool
) -> None:
    load = _load()
    block = load.plans[0].tokens(2 * SIZE)[stored * SIZE :][:SIZE]
    event = {"type": "BlockStored", "token_ids": block}
    vllm = Steps([Step(admitted=[("a", SIZE)]), Step(events=[event])])
    admitted = [] if our_cached is None else [("a", our_cached)]
    ours = Steps([Step(admitted=admitted), Step(events=[event])])
    difference = Difference(0, "admitted", vllm=SIZE, ours=our_cached)
    assert is_late_block(load, vllm, ours, difference) is is_known


def test_a_block_that_was_cached_before_is_another_difference() -> None:
    load = _load()
    event = {"type": "BlockStored", "token_ids": load.plans[0].tokens(SIZE)}
    vllm = Steps([Step(events=[event]), Step(admitted=[("a", SIZE)])])
    ours = Steps([Step(events=[event]), Step(admitted=[("a", 0)])])
    assert not is_late_block(load, vllm, ours, Difference(1, "admitted", vllm=SIZE, ours=0))


def test_another_field_is_another_difference() -> None:
    load = _load()
    event = {"type": "BlockStored", "token_ids": load.plans[0].tokens(SIZE)}
    vllm = Steps([Step(admitted=[("a", SIZE)]), Step(events=[event])])
    ours = Steps([Step(admitted=[("a", 0)]), Step(events=[event])])
    assert not is_late_block(load, vllm, ours, Difference(0, "preempted", vllm=["a"], ours=[]))


@pytest.mark.parametrize(
    ("preempted", "extra_hash", "is_known"),
    [(["a"], 7, True), ([], 7, False), (["a"], 8, False)],
    ids=["victim's block", "no victim", "other block"],
)
def test_only_events_of_the_block_of_a_preempted_reply_are_late(
    preempted: list[str], extra_hash: int, is_known: bool
) -> None:
    load = _load()
    block = load.plans[0].tokens(2 * SIZE)[SIZE:]
    stored = {"type": "BlockStored", "block_hashes": [7], "token_ids": block}
    removed = {"type": "BlockRemoved", "block_hashes": [extra_hash]}
    vllm = Steps([Step(preempted=preempted), Step(events=[removed, stored])])
    ours = Steps([Step(preempted=preempted), Step(events=[stored])])
    difference = Difference(1, "events", vllm=[removed, stored], ours=[stored])
    assert is_late_block(load, vllm, ours, difference) is is_known


def test_block_of_a_preempted_prompt_is_not_late() -> None:
    load = _load()
    load.plans[0].prompt = [*range(2 * SIZE)]
    stored = {
        "type": "BlockStored",
        "block_hashes": [7],
        "token_ids": load.plans[0].tokens(2 * SIZE)[SIZE:],
    }
    removed = {"type": "BlockRemoved", "block_hashes": [7]}
    vllm = Steps([Step(preempted=["a"], events=[removed, stored])])
    ours = Steps([Step(preempted=["a"])])
    difference = Difference(0, "events", vllm=[removed, stored], ours=[])
    assert not is_late_block(load, vllm, ours, difference)


@pytest.mark.parametrize(
    ("step", "error", "is_known"),
    [(2, "ValueError: Cannot get 1 free blocks from the pool", True), (1, "", False)],
    ids=["no free block", "no error"],
)
def test_only_an_exception_after_equal_steps_is_an_exhausted_pool(
    step: int, error: str, is_known: bool
) -> None:
    vllm = Steps([Step(), Step(), Step()], error=error)
    assert is_exhausted_pool(vllm, Difference(step, "tokens", [], [])) is is_known
    assert not is_exhausted_pool(vllm, Difference(0, "tokens", [], []))
