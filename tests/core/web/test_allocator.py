"""An idle worker returns the memory of a burst to the system."""

from types import SimpleNamespace

from app.core.server.gunicorn.allocator import (
    BUSY_GROWTH_BYTES,
    CALLS_PER_TRIM,
    GROWTH_BYTES,
    Allocator,
)
from config.machine import resident_bytes

MIB = 1 << 20


def test_heap_is_trimmed_while_the_memory_has_grown() -> None:
    trims: list[int] = []
    resident = [50 * MIB]
    library = SimpleNamespace(mallopt=max, malloc_trim=trims.append)
    allocator = Allocator(library, lambda: resident[0])
    allocator.tune()
    allocator.trim()
    assert trims == []
    resident[0] += GROWTH_BYTES
    allocator.trim()
    assert len(trims) == 1
    # What is freed long after the burst returns, too: the memory has not grown since.
    for _ in range(CALLS_PER_TRIM):
        assert len(trims) == 1
        allocator.trim()
    assert len(trims) == 2
    resident[0] = 50 * MIB
    for _ in range(2 * CALLS_PER_TRIM):
        allocator.trim()
    assert len(trims) == 2


def test_busy_worker_trims_after_more_growth() -> None:
    trims: list[int] = []
    resident = [0]
    allocator = Allocator(
        SimpleNamespace(mallopt=max, malloc_trim=trims.append), lambda: resident[0]
    )
    allocator.tune()
    resident[0] = BUSY_GROWTH_BYTES - 1
    allocator.trim(is_busy=True)
    assert trims == []
    resident[0] = BUSY_GROWTH_BYTES
    allocator.trim(is_busy=True)
    assert trims == [0]


def test_other_c_libraries_are_left_alone() -> None:
    readings = iter([0, GROWTH_BYTES])
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
