"""Adapters that come and go, and where they are.

Places are as a vLLM with two of them on the GPU and three in CPU memory was seen to give them.
"""

import pytest

from app.core.engine.batch import LoRASlots
from app.core.engine.lora import (
    MAX_NAME,
    Adapter,
    AdapterError,
    AdapterMemory,
    LoRARegistry,
)


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
