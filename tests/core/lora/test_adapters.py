"""Adapters that come and go, and where they are.

Places are as a vLLM with two of them on the GPU and three in CPU memory was seen to give them.
"""

import pytest

from app.core.engine.batch import AdapterKey, LoRASlots
from app.core.engine.lora import (
    MAX_NAME,
    Adapter,
    AdapterError,
    AdapterMemory,
    LoRARegistry,
)


def names(registry: LoRARegistry) -> list[str]:
    return [adapter.name for adapter in registry]


def test_loading_an_adapter_above_the_limit_drops_the_oldest_adapter() -> None:
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


def levels(memory_tiers: AdapterMemory) -> dict[str, str]:
    return dict(memory_tiers)


def test_most_recently_used_adapters_are_on_the_gpu() -> None:
    registry = LoRARegistry([Adapter("alice", "/a")])
    memory_tiers = memory(registry)
    assert levels(memory_tiers) == {"alice": "gpu"}
    registry.load("bob", "/b")
    registry.load("carol", "/c")
    assert levels(memory_tiers) == {"alice": "cpu", "bob": "gpu", "carol": "gpu"}
    memory_tiers.enter("alice")
    memory_tiers.leave("alice")
    assert levels(memory_tiers) == {"alice": "gpu", "bob": "cpu", "carol": "gpu"}
    registry.load("dave", "/d")
    assert levels(memory_tiers) == {"alice": "gpu", "carol": "cpu", "dave": "gpu"}
    registry.unload("carol")
    assert levels(memory_tiers) == {"alice": "gpu", "dave": "gpu"}
    assert (memory_tiers.loads, memory_tiers.activations) == (4, 5)
    memory_tiers.enter("bob")
    assert levels(memory_tiers) == {"alice": "cpu", "dave": "gpu", "bob": "gpu"}
    assert (memory_tiers.loads, memory_tiers.activations) == (5, 6)


def test_running_adapters_are_not_evicted() -> None:
    registry = LoRARegistry([Adapter(name, "/") for name in "abc"])
    memory_tiers = memory(registry, max_gpu=2, max_cpu=2)
    slots = LoRASlots(2, registry.number, memory_tiers)
    alice, bob, carol = [AdapterKey(name, registry.number(name)) for name in "abc"]
    assert levels(memory_tiers) == {"b": "gpu", "c": "gpu"}
    slots.enter(bob)
    slots.enter(alice)
    assert levels(memory_tiers) == {"b": "gpu", "a": "gpu"}
    slots.leave(bob)
    slots.enter(carol)
    assert levels(memory_tiers) == {"a": "gpu", "c": "gpu"}
    registry.unload("a")
    assert levels(memory_tiers) == {"c": "gpu"}
    slots.leave(alice)
    assert levels(memory_tiers) == {"c": "gpu"}


def test_an_adapter_that_is_loaded_again_needs_another_slot() -> None:
    registry = LoRARegistry([Adapter("alice", "/")])
    slots = LoRASlots(1, registry.number)
    first = slots.key("alice")
    assert first is not None
    slots.enter(first)
    registry.unload("alice")
    registry.load("alice", "/")
    second = slots.key("alice")
    assert slots.is_ready(first)
    assert not slots.is_ready(second)
    assert not slots.has_room()
    assert slots.running("alice") == 1
    slots.leave(first)
    assert list(slots) == []
