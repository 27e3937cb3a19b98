"""Adapters that come and go: what is refused, what is dropped, and how much memory they may take."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from app.lora.adapters import (
    RUNTIME_BYTES,
    Adapter,
    AdapterAlreadyLoaded,
    AdapterNotFound,
    AdapterTooLarge,
    LoRARegistry,
)


def names(registry: LoRARegistry) -> list[str]:
    return [adapter.name for adapter in registry]


def test_an_adapter_is_loaded_once_unless_it_is_replaced() -> None:
    registry = LoRARegistry([Adapter("a", "/a")])
    with pytest.raises(AdapterAlreadyLoaded, match="'a' is loaded already"):
        registry.load("a", "/b")
    assert registry.path("a") == "/a"
    registry.load("a", "/b", in_place=True)
    assert (names(registry), registry.path("a")) == (["a"], "/b")


def test_adapters_are_numbered_from_1_on_and_a_number_is_not_given_twice() -> None:
    registry = LoRARegistry([Adapter("a", "/a"), Adapter("b", "/b")])
    registry.unload("b")
    registry.load("c", "/c")
    registry.load("a", "/other", in_place=True)
    registry.load("b", "/b")
    assert [registry.number(name) for name in ("a", "b", "c", "nobody")] == [1, 4, 3, 0]


def test_what_is_not_there_cannot_be_unloaded() -> None:
    with pytest.raises(AdapterNotFound, match="No adapter 'a' is loaded"):
        LoRARegistry().unload("a")


def test_watchers_learn_of_those_that_come_and_go() -> None:
    registry = LoRARegistry([Adapter("a", "/a"), Adapter("b", "/b")])
    seen: list[str] = []
    registry.watch(lambda name: seen.append(f"+{name}"), lambda name: seen.append(f"-{name}"))
    registry.load("c", "/c")
    registry.unload("b")
    assert seen == ["+c", "-b"] and names(registry) == ["a", "c"]


def test_memory_is_bounded_however_many_adapters_come() -> None:
    registry = LoRARegistry([Adapter("first", "/first")])
    for number in range(20_000):
        registry.load(f"adapter {number}", "/" * 100)
        assert registry.size_bytes <= registry.limit_bytes
    assert "adapter 19999" in registry and "first" not in registry and len(registry) > 1000


def test_an_adapter_that_can_never_fit_is_refused_and_nothing_is_dropped_for_it() -> None:
    registry = LoRARegistry([Adapter("a", "/a")])
    with pytest.raises(AdapterTooLarge):
        registry.load("b", "/" * RUNTIME_BYTES)
    assert names(registry) == ["a"]


def test_an_adapter_that_grows_in_its_place_is_not_dropped_for_itself() -> None:
    registry = LoRARegistry()
    registry.load("a", "/a")
    registry.load("b", "/" * (RUNTIME_BYTES // 2))
    registry.load("a", "/" * (RUNTIME_BYTES // 2), in_place=True)
    assert names(registry) == ["a"] and registry.size_bytes <= registry.limit_bytes


@pytest.mark.slow
def test_the_size_is_no_less_than_what_is_really_taken() -> None:
    registry = LoRARegistry()
    gc.collect()
    tracemalloc.start()
    for number in range(2000):
        registry.load(f"adapter {number}", f"/adapters/of/some/team/{number}")
    really, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert really <= registry.size_bytes <= 1.6 * really  # objects are smaller from Python 3.13 on


def test_what_is_unloaded_takes_no_memory_any_more() -> None:
    registry = LoRARegistry()
    registry.load("a", "/a")
    registry.load("a", "/somewhere/else", in_place=True)
    registry.unload("a")
    assert registry.size_bytes == 0
