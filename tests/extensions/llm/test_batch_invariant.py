"""Replies of `batch_invariant` are equal to the last bit, whatever a step holds beside them."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from app.extensions.llm.engine import LLMEngine, Output
from app.extensions.llm.sampling_params import SamplingParams
from tests.extensions.llm.tiny import (
    GREEDY,
    Shape,
    generate,
    greedy_after,
    make_engine,
    make_model,
    prompts,
    run_all,
)

pytestmark = pytest.mark.engine

WANTED = prompts(6, seed=5, shared=21)
DRAWN = SamplingParams(temperature=1.0, max_tokens=24, ignore_eos=True, logprobs=0)
Exact = list[tuple[int, float]]
"""Each token and its log probability."""
Alone = tuple[Path, str, list[Exact]]
"""The model, its dtype, and the replies that are computed alone."""


def exact(outputs: list[Output]) -> Exact:
    entries = [entry for output in outputs for entry in output.update.logprobs or ()]
    return [(entry.token_id, entry.logprob) for entry in entries]


def replies(engine: LLMEngine, numbers: list[int], apart: int) -> dict[int, Exact]:
    outputs: dict[str, list[Output]] = {}
    for number in numbers:
        engine.add_request(str(number), WANTED[number], replace(DRAWN, seed=number))
        for _ in range(apart):
            for output in engine.step():
                outputs.setdefault(str(output.sequence.request_id), []).append(output)
    run_all(engine, outputs)
    return {number: exact(outputs[str(number)]) for number in numbers}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def alone(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str, list[Exact]]:
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, Shape("qwen3"))
    numbers = range(len(WANTED))
    options: dict[str, Any] = {"batch_invariant": True, "block_size": 8}
    unbatched = [
        replies(make_engine(folder, request.param, **options), [number], 0)[number]
        for number in numbers
    ]
    return folder, request.param, unbatched


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.permutations(range(len(WANTED))), st.data())
def test_replies_do_not_depend_on_batching_and_scheduling(
    alone: Alone, order: list[int], data: st.DataObject
) -> None:
    folder, dtype, unbatched = alone
    engine = make_engine(
        folder,
        dtype,
        batch_invariant=True,
        num_blocks=data.draw(st.sampled_from([18, 400])),  # few: preemptions
        block_size=8,
        max_num_seqs=data.draw(st.integers(1, 6)),
        max_num_batched_tokens=data.draw(st.sampled_from([7, 23, 200])),
    )
    assert replies(engine, order, data.draw(st.integers(0, 5))) == dict(enumerate(unbatched))
    assert replies(engine, order[:2], 0) == {
        number: unbatched[number] for number in order[:2]
    }  # found in the cache


@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_batch_invariant_tokens_equal_those_of_transformers(kind: str, tmp_path: Path) -> None:
    model = make_model(tmp_path, Shape(kind))
    engine = make_engine(tmp_path, batch_invariant=True, max_num_batched_tokens=23)
    for prompt, tokens in zip(
        WANTED, generate(engine, WANTED, replace(GREEDY, max_tokens=24)), strict=True
    ):
        assert greedy_after(model, prompt, tokens) == tokens
