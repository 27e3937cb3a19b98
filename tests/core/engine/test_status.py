"""How a choice stands, as who watches an engine sees it."""

from typing import Any

import pytest

from app.core.engine.batch import Phase, SequenceStatus
from app.core.engine.profile import read_profile
from config.settings import StepSettings
from tests.core.engine.harness import BLOCK_TOKENS, START_S, Harness

SLOW = {"time_to_first_token": 1.0, "inter_token_latency": 0.5}
PROMPT = list(range(3 * BLOCK_TOKENS))


def stepped(async_scheduling: bool = True, **fields: Any) -> Harness:
    steps = StepSettings(
        timing="steps", max_num_batched_tokens=2048, async_scheduling=async_scheduling
    )
    return Harness(sections={"steps": steps}, profile=read_profile("qwen3-14b-h100"), **fields)


def phases(harness: Harness, request_id: str) -> list[Phase]:
    seen: list[Phase] = []
    while sequences := [
        sequence
        for sequence in harness.engine.sequences()
        if sequence.request.request_id == request_id
    ]:
        phase = sequences[0].status().phase
        if [phase] != seen[-1:]:
            seen.append(phase)
        harness.clock.advance(0.001)
    return seen


def test_sequence_is_queued_then_prefills_then_decodes() -> None:
    harness = Harness(slots=1, **SLOW)
    harness.ask("a", prompt_ids=PROMPT)
    harness.ask("b", prompt_ids=PROMPT)
    second, first = harness.engine.sequences()
    assert first.status() == SequenceStatus(
        Phase.PREFILL, len(PROMPT), held=0, scheduled_s=START_S, first_s=None
    )
    assert second.status() == SequenceStatus(
        Phase.QUEUED, 0, held=0, scheduled_s=None, first_s=None
    )
    assert (first.text(), first.preemptions) == ("", 0)
    harness.clock.advance(1.6)
    assert first.status() == SequenceStatus(
        Phase.DECODE, len(PROMPT), held=0, scheduled_s=START_S, first_s=START_S + 1
    )
    assert first.text() == harness.said("a") != ""


@pytest.mark.parametrize("ahead", [True, False])
def test_long_prompt_is_computed_in_chunks(ahead: bool) -> None:
    harness = stepped(ahead, slots=1, blocks=2000)
    harness.ask("a", prompt_ids=list(range(9000)), max_tokens=90)
    harness.ask("b")
    waiting, sequence = harness.engine.sequences()
    assert sequence.status() == SequenceStatus(
        Phase.QUEUED, 0, held=0, scheduled_s=None, first_s=None
    )
    computed = []
    while (standing := sequence.status()).phase < Phase.DECODE:
        if standing.phase is Phase.PREFILL and standing.computed not in computed:
            computed.append(standing.computed)
            assert (
                standing.held == standing.computed // BLOCK_TOKENS == len(sequence.block_numbers())
            )
            assert standing.scheduled_s is not None and standing.first_s is None
        harness.clock.advance(0.001)
    # Two steps are made together with async scheduling; once all of it is in one, its token is in
    # flight.
    assert computed == [2048, 4096, 6144, 8192][ahead:] and standing.computed == 9000
    assert waiting.status().phase is Phase.QUEUED and waiting.block_numbers() == []
    harness.clock.advance(0.3)
    first_s = sequence.status().first_s
    assert first_s == harness.tokens("a")[0].at_s and sequence.text() == harness.said("a")


def test_sequence_without_free_blocks_is_preempted() -> None:
    harness = stepped(slots=4, blocks=12)
    for name in "abc":
        harness.ask(name, prompt_ids=[ord(name)] * 20, max_tokens=24)
    assert Phase.PREEMPTED in phases(harness, "c")
