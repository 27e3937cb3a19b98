"""Adapters that come and go, and where they are.

Places are as a vLLM with two of them on the GPU and three in CPU memory was seen to give them.
"""

import os
from pathlib import Path

import pytest

from app.core.engine.batch import LoRASlots
from app.core.engine.lora import (
    MAX_NAME,
    Adapter,
    AdapterError,
    AdapterMemory,
    LoRARegistry,
)
from app.core.engine.lora_files import CONFIG, MAX_CONFIG_BYTES
from app.core.engine.lora_metrics import LoraResidency, rank_of


def names(registry: LoRARegistry) -> list[str]:
    return [adapter.name for adapter in registry]


def test_the_first_adapter_is_dropped_above_the_limit() -> None:
    registry = LoRARegistry([Adapter("first", "/first")], at_runtime=2)
    for name in "abc":
        registry.load(name, "/")
    registry.load("a", "/other", in_place=True)
    assert names(registry) == ["a", "b", "c"]
    with pytest.raises(AdapterError, match="characters"):
        registry.load("d", "/" * MAX_NAME)
    assert names(registry) == ["a", "b", "c"]


def memory(registry: LoRARegistry, max_gpu: int = 2, max_cpu: int = 3) -> AdapterMemory:
    return AdapterMemory(registry, max_gpu, max_cpu)


def levels(kept: AdapterMemory) -> dict[str, str]:
    return dict(kept)


def test_the_latest_used_adapters_are_on_the_gpu() -> None:
    registry = LoRARegistry([Adapter("alice", "/a")])
    kept = memory(registry)
    assert levels(kept) == {"alice": "gpu"}
    registry.load("bob", "/b")
    registry.load("carol", "/c")
    assert levels(kept) == {"alice": "cpu", "bob": "gpu", "carol": "gpu"}
    kept.enter("alice")
    kept.leave("alice")
    assert levels(kept) == {"alice": "gpu", "bob": "cpu", "carol": "gpu"}
    registry.load("dave", "/d")
    assert levels(kept) == {"alice": "gpu", "carol": "cpu", "dave": "gpu"}
    registry.unload("carol")
    assert levels(kept) == {"alice": "gpu", "dave": "gpu"}
    assert (kept.loads, kept.activations) == (4, 5)
    kept.enter("bob")
    assert levels(kept) == {"alice": "cpu", "dave": "gpu", "bob": "gpu"}
    assert (kept.loads, kept.activations) == (5, 6)


def test_running_adapters_are_not_evicted() -> None:
    registry = LoRARegistry([Adapter(name, "/") for name in "abc"])
    kept = memory(registry, max_gpu=2, max_cpu=2)
    slots = LoRASlots(2, registry.__contains__, kept)
    assert levels(kept) == {"b": "gpu", "c": "gpu"}
    assert slots.enter("b") and slots.enter("a")
    assert levels(kept) == {"b": "gpu", "a": "gpu"}
    slots.leave("b")
    assert slots.enter("c")
    assert levels(kept) == {"a": "gpu", "c": "gpu"}
    registry.unload("a")
    assert levels(kept) == {"c": "gpu"}
    slots.leave("a")
    assert levels(kept) == {"c": "gpu"}
    assert not slots.enter(None) and levels(kept) == {"c": "gpu"}


def test_rank_of_a_file_that_is_large_or_not_plain_is_unknown(tmp_path: Path) -> None:
    file = tmp_path / CONFIG
    file.write_text('{"r": 8}')
    assert rank_of(str(tmp_path)) == 8
    file.write_text('{"r": 8, "more": "' + "x" * MAX_CONFIG_BYTES + '"}')
    assert rank_of(str(tmp_path)) is None
    file.write_text("[" * 100_000)
    assert rank_of(str(tmp_path)) is None
    file.unlink()
    os.mkfifo(file)  # opening it to read would wait for a writer
    assert rank_of(str(tmp_path)) is None


def test_metric_families_report_adapter_levels(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"r": 64, "peft_type": "LORA"}')
    registry = LoRARegistry([Adapter("a", str(tmp_path)), Adapter("b", "/nowhere")])
    server = {"model_name": "m", "engine": "0"}
    residency = LoraResidency(
        memory(registry, 1, 2),
        lambda name: rank_of(registry.adapter(name).path) or 16,
        server,
        lambda: 0.0,
    )
    text = residency.render()
    of, same = 'engine="0"', 'model_name="m",pinned="false"'
    for line in (
        f'vllm:lora_adapter_loaded{{adapter_name="a",{of},level="cpu",{same},rank="64"}} 1.0',
        f'vllm:lora_adapter_loaded{{adapter_name="b",{of},level="gpu",{same},rank="16"}} 1.0',
        f'vllm:num_gpu_loaded_lora_adapters{{{of},model_name="m"}} 1.0',
        f'vllm:num_cpu_loaded_lora_adapters{{{of},model_name="m"}} 2.0',
        f'vllm:max_gpu_lora_adapters{{{of},model_name="m"}} 1.0',
        f'vllm:lora_adapter_load_seconds_count{{{of},model_name="m",transition="load"}} 2.0',
        f'vllm:lora_adapter_load_seconds_count{{{of},model_name="m",transition="activate"}} 2.0',
    ):
        assert f"{line}\n" in text
    registry.unload("b")
    text = residency.render()
    assert (
        'adapter_name="b"' not in text
        and f'num_cpu_loaded_lora_adapters{{{of},model_name="m"}} 1.0' in text
    )
