"""Numbers of 16 bits: near those of float32, and what is told is what is used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.llm.tiny import GREEDY, KINDS, Shape, generate, make_engine, make_model, prompts, told

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("kind", KINDS)
def test_most_likely_tokens_are_those_of_float32(kind: str, tmp_path: Path) -> None:
    make_model(tmp_path, Shape(kind))
    wide, narrow = make_engine(tmp_path), make_engine(tmp_path, dtype="bfloat16")
    texts = [prompt + said for prompt, said in zip(prompts(), generate(wide, prompts()), strict=True)]
    (likeliest, logprobs), (near, rounded) = told(wide, texts), told(narrow, texts)
    assert len(near) > 1000
    assert sum(a == b for a, b in zip(likeliest, near, strict=True)) > 0.9 * len(near)
    assert rounded.isfinite().all()
    assert float((rounded - logprobs).abs().mean()) < 0.1
    runner, info = narrow.runner, narrow.runner.device.info()
    assert (info["device"], info["dtype"]) == ("cpu", "bfloat16")
    assert runner.store.layers[0].dtype == runner.model.embedding.dtype == torch.bfloat16
    assert runner.model.layers[0].qkv.weight.dtype == torch.bfloat16


def test_decodes_go_on_like_prompts(folder: Path) -> None:
    """What is said token by token is what would be likeliest if all of it were a prompt."""
    engine, wanted = make_engine(folder, dtype="bfloat16", enable_prefix_caching=False), prompts()
    said = generate(engine, wanted)
    again, _ = told(engine, [prompt + tokens for prompt, tokens in zip(wanted, said, strict=True)])
    place, same = 0, 0
    for prompt, tokens in zip(wanted, said, strict=True):
        place += len(prompt) - 1
        same += sum(a == b for a, b in zip(again[place : place + 64], tokens, strict=True))
        place += 64
    assert same > 0.9 * 64 * len(wanted)


def test_rare_ways_compute_the_same(folder: Path) -> None:
    """Without packed layers, in small chunks, short of blocks, without the dense copy: most of it agrees."""
    wanted = prompts(8, shared=20)
    expected = generate(make_engine(folder, dtype="bfloat16"), wanted)
    chunked = make_engine(folder, dtype="bfloat16", max_num_batched_tokens=19, num_blocks=24)
    sparse = make_engine(folder, dtype="bfloat16")
    sparse.runner.workspace._limit_bytes = 0
    for engine in (chunked, sparse):
        tokens = generate(engine, wanted, GREEDY)
        assert all(len(said) == 64 for said in tokens)
        # A tie that falls otherwise makes another text of the rest.
        assert sum(a[:8] == b[:8] for a, b in zip(tokens, expected, strict=True)) >= 5
