"""An idle worker returns the memory of a burst to the system."""

from types import SimpleNamespace

from app.core.server.gunicorn.allocator import GROWTH_BYTES, Allocator
from config.machine import resident_bytes

MIB = 1 << 20


def test_heap_is_trimmed_once_the_memory_has_grown() -> None:
    trims: list[int] = []
    readings = iter([50 * MIB, 50 * MIB, 58 * MIB + 1, 51 * MIB, 52 * MIB])
    library = SimpleNamespace(mallopt=max, malloc_trim=trims.append)
    allocator = Allocator(library, readings.__next__)
    allocator.tune()
    allocator.trim()
    assert trims == []
    allocator.trim()
    assert trims == [0]
    allocator.trim()
    assert trims == [0]


def test_other_c_libraries_are_left_alone() -> None:
    readings = iter([0, GROWTH_BYTES, GROWTH_BYTES])
    allocator = Allocator(SimpleNamespace(), readings.__next__)
    allocator.tune()
    allocator.trim()
    assert next(readings, None) is None


def test_small_blocks_that_are_free_return_to_the_system() -> None:
    allocator = Allocator()
    allocator.tune()
    before_bytes = resident_bytes()
    blocks = [bytearray(2000) for _ in range(60_000)]
    last = bytearray(2000)
    grown_bytes = resident_bytes() - before_bytes
    del blocks
    allocator.trim()
    if before_bytes:
        assert resident_bytes() - before_bytes < grown_bytes / 2
    assert len(last) == 2000
