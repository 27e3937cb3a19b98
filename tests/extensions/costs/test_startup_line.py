"""The line that `serve` logs about the memory."""

from __future__ import annotations

import pytest

from app.core.settings import load
from app.extensions.costs import Costs


@pytest.mark.parametrize(
    ("words", "begin"),
    [
        ("Qwen/Qwen3-8B --device h100", ""),
        ("Qwen/Qwen3-8B --device cuda", ""),
        ("Qwen/Qwen3-8B", ""),
        ("someone/unknown --device h100", ""),
        ("Qwen/Qwen3-8B --device nonsense", ""),
        ("meta-llama/Llama-3.3-70B-Instruct --device h100", "vLLM would not start so, or it can"),
        ("Qwen/Qwen3-8B --device l4 --max-model-len 40960", "vLLM would not start so, or it can"),
        ("Qwen/Qwen3-8B --device l4 --max-model-len 16384", ""),
        (
            "Qwen/Qwen3-8B --device l4 --max-model-len 16384 --vllm-version 0.10",
            "vLLM would not start so, or it can",
        ),
    ],
)
def test_server_that_simulates_a_device_names_a_model_that_does_not_fit(
    words: str, begin: str
) -> None:
    lines = Costs.startup_lines(load(["--model", *words.split()], {}))
    assert len(lines) == bool(begin)
    assert all(line.startswith(begin) for line in lines)
