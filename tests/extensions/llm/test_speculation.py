"""Prompt lookup:

the same replies in fewer steps, whatever a request asks for and whatever runs beside it.
"""

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.core.engine.kvcache.hashing import Prompt
from app.extensions.llm.engine import LLMEngine, Output
from app.extensions.llm.errors import ModelLoadError
from app.extensions.llm.library import make_engine as make_llm_engine
from app.extensions.llm.llm import LLM
from app.extensions.llm.sampling_params import SamplingParams, StructuredOutputsParams
from app.extensions.llm.sampling_state import SamplingState
from app.extensions.llm.sequence import QueuedRequest, Sequence
from app.extensions.llm.speculation import PromptLookup, look_up
from tests.core.kvcache.caches import check
from tests.extensions.llm.test_server import serving
from tests.extensions.llm.tiny import generate, make_engine, prompts, run_all
from tests.hostile.raw_client import Wire, metric, post
from vllm_facts.speculative import SpeculativeConfig

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

LOOKUP = {
    "method": "ngram",
    "num_speculative_tokens": 4,
    "prompt_lookup_max": 3,
    "prompt_lookup_min": 1,
}
CONFIG = msgspec.convert(LOOKUP, SpeculativeConfig)
PLAIN = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
WANTED = [ids * 3 for ids in prompts(6, seed=2)]
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0, "top_k": 3, "seed": 5},
    {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "min_tokens": 20,
        "stop_token_ids": [*range(90)],
    },
    {"temperature": 0.7, "logprobs": 2, "seed": 1, "prompt_logprobs": 0, "max_tokens": 17},
    {"temperature": 0.0, "n": 3, "logit_bias": {7: 4.0, 8: 4.0, 9: 4.1}},
    {"temperature": 1.0, "n": 2, "seed": 3, "allowed_token_ids": [1, 2, 3]},
]
"""Of requests: what the text repeats, and what has a state that grows with each token."""


def longest_first(ids: list[int], least_length: int, most_length: int, count: int) -> list[int]:
    """By the words of vLLM's documentation: each length, then each place."""
    for size in range(most_length, least_length - 1, -1):
        for start in range(len(ids) - size):
            if ids[start : start + size] == ids[len(ids) - size :]:
                return ids[start + size :][:count]
    return []


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.integers(1, 6),
    st.integers(0, 6),
    st.integers(0, 8),
)
def test_draft_continues_the_earliest_of_the_longest_ngram_matches(
    ids: list[int], least_length: int, extra_length: int, count: int
) -> None:
    draft = look_up(numpy.array(ids, numpy.int32), least_length, least_length + extra_length, count)
    assert draft == longest_first(ids, least_length, least_length + extra_length, count)


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.integers(0, 9), max_size=30), st.data())
def test_drafts_are_looked_up_in_the_prompt_and_the_reply(
    prompt: list[int], reply: list[int], data: st.DataObject
) -> None:
    state = SamplingState(PLAIN, prompt, [], 0)
    blockless_prompt = Prompt(prompt, (), None, False, None)  # type: ignore[arg-type]
    request = QueuedRequest(
        request_id="one", priority=0, max_output_tokens=99, queued_s=0.0, deadline_s=0.0
    )
    sequence = Sequence(request, 0, blockless_prompt, state, detokenizer=None)
    lookup = PromptLookup(CONFIG)
    known_tokens = 0
    while known_tokens < len(reply):
        known_tokens = data.draw(st.integers(known_tokens, len(reply)))
        sequence.output_ids[:] = reply[:known_tokens]
        count = lookup.propose(sequence, 3)
        assert sequence.drafts == longest_first(
            prompt + reply[:known_tokens], 1, 3, 3
        ) and count == len(sequence.drafts)
        known_tokens += 1


def replies_of(engine: LLMEngine, order: list[int], pauses: list[int]) -> dict[str, list[object]]:
    """All that each choice of `WANTED` is told, but for how it is cut into outputs."""
    outputs: dict[str, list[Output]] = {}

    def note(outputs_of_step: list[Output]) -> None:
        for output in outputs_of_step:
            outputs.setdefault(f"{output.sequence.request_id} {output.sequence.index}", []).append(
                output
            )

    for number, pause in zip(order, pauses, strict=True):
        engine.add_request(str(number), WANTED[number], replace(PLAIN, **KINDS[number]))
        for _ in range(pause):
            note(engine.step())
    while engine.has_work:
        note(engine.step())
    summaries = {}
    for name, outputs_of_request in outputs.items():
        updates = [entry.update for entry in outputs_of_request]
        logprobs = [
            (entry.token_id, entry.rank, round(entry.logprob, 3))
            for update in updates
            for entry in update.logprobs or ()
        ]
        ids = [token for update in updates for token in update.ids]
        summaries[name] = [ids, logprobs, updates[-1].finish, updates[-1].stop_reason]
    return summaries


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, list[object]]:
    plain: dict[str, list[object]] = {}
    for number in range(len(WANTED)):
        plain |= replies_of(make_engine(folder), [number], [0])
    return plain


@settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.permutations(range(len(WANTED))), st.data())
def test_replies_are_the_same_with_and_without_speculation(
    folder: Path, alone: dict[str, list[object]], order: list[int], data: st.DataObject
) -> None:
    size = data.draw(st.sampled_from([4, 8, 16]))
    scarce = data.draw(st.booleans())
    engine = make_engine(
        folder,
        speculative_config=CONFIG,
        num_blocks=1 + (260 if scarce else 2000) // size,
        block_size=size,
        max_num_seqs=data.draw(st.integers(1, 12)),
        max_num_batched_tokens=data.draw(st.integers(12, 200)),
        enable_prefix_caching=data.draw(st.booleans()),
    )
    pauses = data.draw(st.lists(st.integers(0, 9), min_size=len(order), max_size=len(order)))
    assert replies_of(engine, order, pauses) == alone
    assert (
        engine.stats.accepted[0] > 0 and engine.stats.accepted.total() < engine.stats.draft_tokens
    )
    assert engine.cache.free == engine.cache.capacity
    check(engine.cache)


def test_repetitive_reply_takes_fewer_steps_with_speculation_than_without(folder: Path) -> None:
    """Of two tokens the likelier one comes for ever; after the first few all drafts are right."""
    repeating = replace(PLAIN, allowed_token_ids=[5], max_tokens=42)
    plain = make_engine(folder)
    engine = make_engine(folder, speculative_config=CONFIG)
    assert generate(engine, WANTED[:1], repeating) == generate(plain, WANTED[:1], repeating)
    stats = engine.stats
    assert stats.generated_tokens == 42
    assert stats.draft_tokens == stats.accepted.total() and len(stats.accepted) == 4
    assert 42 - stats.accepted.total() <= stats.steps < 16 < plain.stats.steps


def test_blocks_of_accepted_drafts_are_cached(folder: Path) -> None:
    engine = make_engine(folder, speculative_config=CONFIG, kv_events=True, block_size=4)
    plain = make_engine(folder, kv_events=True, block_size=4)
    events = []
    for tested in (engine, plain):
        [ids] = generate(tested, WANTED[:1], replace(PLAIN, allowed_token_ids=[5, 6]))
        stored = [event for event in tested.cache.take_events() if hasattr(event, "block_hashes")]
        events.append([name for event in stored for name in event.block_hashes])
        longer_prompt = [*WANTED[0], *ids, 7]
        assert generate(tested, [longer_prompt]) == generate(make_engine(folder), [longer_prompt])
        assert tested.stats.prefix_hits == (len(longer_prompt) - 2) // 4 * 4
    assert events[0] == events[1]


def test_invalid_speculative_config_is_rejected(folder: Path) -> None:
    for flaw, words in (
        ({"method": "eagle"}, "eagle"),
        ({"num_speculative_tokens": 0}, "num_speculative_tokens"),
        ({"prompt_lookup_min": 4}, "prompt_lookup_min"),
        ({"model": "x"}, "model"),
    ):
        with pytest.raises(ModelLoadError, match=words):
            make_llm_engine(str(folder), "cpu", speculative_config=LOOKUP | flaw)


def test_drafts_do_not_change_replies_with_constraints_or_logit_bias(model: str) -> None:
    schema = {"type": "array", "items": {"enum": ["abcabc", "abcd"]}, "minItems": 4, "maxItems": 6}
    param_sets = [
        SamplingParams(
            structured_outputs=StructuredOutputsParams(json=schema), temperature=1.0, seed=2
        ),
        SamplingParams(
            structured_outputs=StructuredOutputsParams(regex="(ab|abc){12}"), temperature=0.0
        ),
        SamplingParams(temperature=0.0, max_tokens=40, bad_words=["th"], logit_bias={5: 9.0}),
    ]
    with LLM(model, "cpu") as plain, LLM(model, "cpu", speculative_config=LOOKUP) as llm:
        for params in param_sets:
            first, other = (
                tested.generate_single("abc abc abcd", params) for tested in (plain, llm)
            )
            assert {**first, "request_id": 0} == {**other, "request_id": 0}
            text = str(first["generated_text"])
            stop = text[len(text) // 2 :][:5]
            ended = [
                tested.generate_single("abc abc abcd", replace(params, stop=stop))
                for tested in (plain, llm)
            ]
            assert ended[0]["generated_text"] == ended[1]["generated_text"]
        assert llm.engine.stats.accepted.total() > 10
        for item in llm.generate_stream("abc abc abcd", param_sets[1]):
            assert str(item["text"]).endswith(str(item["token"]))
        assert run_all(llm.engine) == {}


def test_metrics_count_drafts_and_record_the_gaps_between_steps(model: str) -> None:
    params = {
        "max_tokens": 60,
        "temperature": 0.0,
        "ignore_eos": True,
        "allowed_token_ids": [40, 41],
    }
    body: dict[str, Any] = {"prompt": WANTED[0], **params}
    with LLM(model, "cpu") as llm:
        plain = llm.generate_single(WANTED[0], SamplingParams(**params))["generated_text"]  # type: ignore[arg-type]
    with serving(model, "--speculative-config", json.dumps(LOOKUP)) as server:
        assert post(server.port, body).json()["choices"][0]["text"] == plain
        with Wire(server.port) as wire:
            options = {
                "stream": True,
                "stream_options": {"include_usage": True},
                "return_token_ids": True,
            }
            *chunks, usage = wire.post(body | options).events()
        sizes = [
            len(chunk["choices"][0]["token_ids"] or ()) for chunk in chunks if chunk["choices"]
        ]
        assert usage["usage"]["completion_tokens"] == 60 == sum(sizes) and max(sizes) == 1
        names = ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
        drafts, drafted, right, by_place = (
            metric(server.port, f"vllm:spec_decode_num_{name}_total") for name in names
        )
        assert 0 < drafts < right == by_place <= drafted <= 4 * drafts
        assert metric(server.port, "vllm:generation_tokens_total") == 120
        gaps = metric(server.port, "vllm:inter_token_latency_seconds_count")
        assert gaps == 120 - right - 2  # one a step, as in vLLM
