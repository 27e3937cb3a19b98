"""Greedy tokens in float32 are those of transformers, whatever else happens; those in bfloat16 are
near.
"""

from pathlib import Path
from random import Random

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from tests.core.kvcache.caches import check
from tests.extensions.llm.tiny import (
    GREEDY,
    KINDS,
    Shape,
    edit_config,
    generate,
    greedy_tokens,
    logprobs_of,
    make_engine,
    make_model,
    prompts,
)  # fmt: skip

pytestmark = pytest.mark.engine

SHAPES = [
    Shape("llama", 4, 4),
    Shape("llama", 4, 2, tied=True),
    Shape("llama", 4, 1, head_dim=24),
    Shape("qwen2", 4, 2, tied=True),
    Shape("qwen2", 4, 1),
    Shape("qwen3", 4, 2, head_dim=32),
    Shape("qwen3", 4, 4, head_dim=8, tied=True),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_greedy_tokens_equal_those_of_transformers(shape: Shape, tmp_path: Path) -> None:
    model = make_model(tmp_path, shape)
    wanted = prompts()
    tokens = generate(make_engine(tmp_path), wanted)
    assert tokens == [greedy_tokens(model, prompt) for prompt in wanted]


Truth = tuple[list[list[int]], list[list[int]]]


@pytest.fixture(scope="module")
def truth(model_of: PreTrainedModel) -> Truth:
    """Prompts that share their first 40 tokens, and what follows them."""
    wanted = prompts(shared=40)
    return wanted, [greedy_tokens(model_of, prompt) for prompt in wanted]


def test_tokens_do_not_depend_on_arrival_times(folder: Path, truth: Truth) -> None:
    wanted, expected = truth
    engine = make_engine(folder, max_num_seqs=5)
    random = Random(5)
    tokens: dict[str, list[int]] = {str(number): [] for number in range(len(wanted))}
    waiting = list(enumerate(wanted))
    while waiting or engine.has_work:
        while waiting and random.random() < 0.3:
            number, prompt = waiting.pop(0)
            engine.add_request(str(number), prompt, GREEDY)
        for output in engine.step():
            tokens[output.sequence.request_id] += output.update.ids
    assert list(tokens.values()) == expected
    check(engine.cache)


def test_chunked_prefill_and_preemption_do_not_change_tokens(folder: Path, truth: Truth) -> None:
    for options, preempted in (({"max_num_batched_tokens": 19}, False), ({"num_blocks": 24}, True)):
        engine = make_engine(folder, **options)
        assert generate(engine, truth[0]) == truth[1]
        assert (engine.scheduler.preemptions > 0) == preempted
        check(engine.cache)


def test_requests_share_the_blocks_of_common_prefixes(folder: Path, truth: Truth) -> None:
    engine = make_engine(folder)
    assert generate(engine, truth[0]) == truth[1]
    # All come at once: 15 begin with two blocks of the first, which computes them in the same step.
    assert engine.stats.prefix_hits == 15 * 32
    assert generate(engine, truth[0]) == truth[1]
    assert engine.stats.prefix_hits > 15 * 32 + 16 * 40


def test_disabling_prefix_caching_gives_the_same_tokens_but_no_cache_hits(
    folder: Path, truth: Truth
) -> None:
    engine = make_engine(folder, enable_prefix_caching=False)
    assert generate(engine, truth[0]) == truth[1]
    assert engine.stats.prefix_hits == 0


LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10_000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
OLDER = {
    "rope_parameters": None,
    "rope_theta": 10_000.0,
    "dtype": None,
    "torch_dtype": "float32",
    "head_dim": None,
}


@pytest.mark.parametrize(
    "changes", [OLDER, {"rope_parameters": LLAMA3}], ids=["older spelling", "scaled"]
)
def test_tokens_match_transformers_with_rope_scaling_or_legacy_configs(
    changes: dict[str, object], tmp_path: Path
) -> None:
    make_model(tmp_path)
    edit_config(tmp_path, **changes)
    model = LlamaForCausalLM.from_pretrained(tmp_path).eval()
    wanted = prompts(4)
    assert generate(make_engine(tmp_path), wanted) == [
        greedy_tokens(model, prompt) for prompt in wanted
    ]


# Numbers of 16 bits: near those of float32.


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_model_predicts_the_most_likely_tokens_of_float32(
    kind: str, tmp_path: Path
) -> None:
    make_model(tmp_path, Shape(kind))
    wide = make_engine(tmp_path)
    narrow = make_engine(tmp_path, dtype="bfloat16")
    texts = [
        prompt + reply for prompt, reply in zip(prompts(), generate(wide, prompts()), strict=True)
    ]
    likeliest, logprobs = logprobs_of(wide, texts)
    near, rounded = logprobs_of(narrow, texts)
    assert len(near) > 1000
    assert sum(a == b for a, b in zip(likeliest, near, strict=True)) > 0.9 * len(near)
    assert rounded.isfinite().all()
    assert float((rounded - logprobs).abs().mean()) < 0.1
    runner = narrow.runner
    info = narrow.runner.device.info()
    assert (info["device"], info["dtype"]) == ("cpu", "bfloat16")
    assert (runner.store.layers[0].dtype, runner.model.embedding.dtype) == (
        torch.float32,
        torch.bfloat16,
    )
    assert runner.model.layers[0].qkv.weight.dtype == torch.bfloat16
