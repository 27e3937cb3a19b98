"""The memory of all requests in flight."""

from __future__ import annotations

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.base.overload import MemoryExceededError, MemoryFullError
from app.core.base.request_memory import STALL_S, Claim, RequestMemory

MIB = 1 << 20


class Clock:
    """A clock that stands still unless it is set."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def memory_of(limit_bytes: int = 100 * MIB, resident_bytes: int = 0) -> RequestMemory:
    return RequestMemory(limit_bytes, 1000 * MIB, lambda: resident_bytes, Clock())


def test_one_request_may_take_all_memory_and_no_more() -> None:
    memory = memory_of()
    memory.claim().grow(100 * MIB)
    claim = memory.claim()
    claim.grow(90 * MIB)
    assert memory.size_bytes == 90 * MIB
    with pytest.raises(MemoryExceededError, match="needs 101 MiB"):
        claim.grow(11 * MIB)
    assert claim.size_bytes == 90 * MIB


def test_large_requests_leave_room_for_smaller_ones() -> None:
    memory = memory_of()
    claims = [memory.claim()]
    claims[0].grow(80 * MIB)
    with pytest.raises(MemoryFullError, match=r"80 of 100 MiB are in use \(--server-memory\)"):
        memory.claim().grow(16 * MIB)
    for size in (12 * MIB, 4 * MIB, 1 * MIB, 1 << 16):
        claims.append(memory.claim())
        claims[-1].grow(size)
    assert memory.size_bytes == sum(claim.size_bytes for claim in claims)


def test_claim_is_released_when_its_request_is_dropped() -> None:
    memory = memory_of()
    claim = memory.claim()
    claim.cover(5 * MIB)
    claim.cover(2 * MIB)
    with claim.lent(3 * MIB):
        assert memory.size_bytes == 8 * MIB
    assert memory.size_bytes == 5 * MIB
    del claim
    assert memory.size_bytes == 0


def test_error_while_memory_is_lent_gives_it_back() -> None:
    memory = memory_of()
    claim = memory.claim()
    with pytest.raises(ValueError), claim.lent(MIB):
        raise ValueError
    assert memory.size_bytes == 0


def test_no_request_is_admitted_when_the_process_has_grown_too_large() -> None:
    memory = memory_of(resident_bytes=890 * MIB)
    claim = memory.claim()
    claim.grow(9 * MIB)
    with pytest.raises(MemoryFullError):
        memory.claim().grow(11 * MIB)
    claim.grow(100)


def test_stalled_body_gives_way_to_a_request_that_needs_its_memory() -> None:
    memory = memory_of()
    clock = memory._now
    assert isinstance(clock, Clock)
    errors: list[Exception] = []

    def receive(claim: Claim) -> None:
        try:
            with claim.receiving():
                claim.cover(70 * MIB)
                gevent.sleep(20)
        except MemoryFullError as error:
            errors.append(error)

    stalled = gevent.spawn(receive, memory.claim())
    gevent.sleep(0)
    other = memory.claim()
    with pytest.raises(MemoryFullError):
        other.grow(50 * MIB)
    clock.now_s = STALL_S
    other.grow(50 * MIB)
    stalled.join(5)
    assert ["stalled" in str(error) for error in errors] == [True]
    assert memory.size_bytes == 50 * MIB and not memory._receiving


def test_timeout_of_a_body_ends_its_wait_as_usual() -> None:
    claim = memory_of().claim()
    with gevent.Timeout(0.01, False), claim.receiving():
        claim.cover(MIB)
        gevent.sleep(20)
    assert claim.size_bytes == MIB


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60 * MIB)), max_size=40))
def test_sum_of_all_claims_never_exceeds_the_limit(steps: list[tuple[int, int]]) -> None:
    memory = memory_of()
    claims = [memory.claim() for _ in range(6)]
    for number, size in steps:
        try:
            claims[number].grow(size)
        except MemoryFullError:
            claims[number].release()
        except MemoryExceededError:
            claims[number].shrink(size)
        assert memory.size_bytes == sum(claim.size_bytes for claim in claims)
        assert memory.size_bytes <= memory.limit_bytes
    claims.clear()
    assert memory.size_bytes == 0
