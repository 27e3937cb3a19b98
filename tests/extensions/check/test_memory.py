"""What fits on a device, and the margin that decides."""

from __future__ import annotations

import re

import pytest

from app.extensions.lab.costs.devices import DEVICES
from app.extensions.lab.costs.owned_devices import MORE_DEVICES, owned_device
from config.declaration import ConfigError
from tests.extensions.check.conftest import Check


def test_advice_fits_and_a_longer_context_does_not(check: Check) -> None:
    words = "--select M --device l4 -- vllm serve Qwen/Qwen3-8B --max-model-len"
    (finding,) = check(f"{words} 40960")
    assert finding["code"] == "M302"
    match = re.search(r"--max-model-len (\d+)", finding["fix"])
    assert match is not None
    assert [each["code"] for each in check(f"{words} {match[1]}")] == ["M304"]
    assert [each["code"] for each in check(f"{words} {int(match[1]) + 16}")] == ["M303"]


def test_parallel_size_of_the_advice_fits(check: Check) -> None:
    words = "--select M --device h100 -- vllm serve meta-llama/Llama-3.3-70B-Instruct"
    (finding,) = check(words)
    assert finding["code"] == "M301"
    match = re.search(r"--tensor-parallel-size (\d+)", finding["fix"])
    assert match is not None
    assert [each["code"] for each in check(f"{words} {match[0]}")] == ["M304"]


def test_logged_server_has_about_the_estimated_tokens(check: Check) -> None:
    """A public log of Qwen3-8B on an A100 with 40 GB, vLLM 0.19.1, has 140,960 tokens."""
    words = "--select M --device a100-40gb --vllm-version 0.19 -- vllm serve Qwen/Qwen3-8B"
    (finding,) = check(f"{words} --max-num-batched-tokens 2048")
    tokens = int(re.findall(r"cache of ([\d,]+) tokens", finding["message"])[0].replace(",", ""))
    assert tokens == pytest.approx(140_960, rel=0.05)


def test_memory_of_an_unnamed_device_counts(check: Check) -> None:
    words = "--select M --device-memory {} -- vllm serve Qwen/Qwen3-8B"
    assert [each["code"] for each in check(words.format("12GiB"))] == ["M301"]
    assert [each["code"] for each in check(words.format("80GiB"))] == ["M304"]


def test_unknown_size_leaves_the_memory_unchecked(check: Check) -> None:
    findings = check("--select M --device h100 -- vllm serve someone/model")
    assert [each["code"] for each in findings] == ["M305"]


@pytest.mark.parametrize(
    ("model", "code"),
    [
        ("someone/novel-405B", "M301"),
        ("someone/novel-405B-A3B-NVFP4", "M301"),
        ("someone/novel-30B-A3B", "M305"),
        ("someone/novel-100B", "M305"),  # 93 GiB, if it has 8 bits
        ("someone/novel-3b", "M305"),
    ],
)
def test_weights_of_an_unknown_shape_are_those_of_the_name(
    check: Check, model: str, code: str
) -> None:
    findings = check(f"--select M --device h200 -- vllm serve {model}")
    assert [each["code"] for each in findings] == [code]
    assert check(f"--select M301 --device h200 -- vllm serve {model} -tp 8") == []


@pytest.mark.parametrize("name", [*DEVICES, *MORE_DEVICES, "RTX 4090", "NVIDIA L40S", "DGX Spark"])
def test_devices_have_a_memory(name: str) -> None:
    assert 4 < owned_device(name).memory / (1 << 30) < 300


def test_unknown_device_is_refused_with_a_similar_name() -> None:
    with pytest.raises(ConfigError, match="did you mean rtx4090"):
        owned_device("rtx4091")
