"""What every backend does, one suite for all of them; the bound of the one in memory."""

import gevent
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.extensions.kv_index.backend import Backend, Clear, Offload, Remove
from app.extensions.kv_index.holders import IndexedEngine
from app.extensions.kv_index.index import Index
from app.extensions.kv_index.memory import (
    MAX_COPY_BYTES,
    REPEAT_BYTES,
    MemoryBackend,
    weigh_bytes,
    weigh_copies,
)
from tests.extensions.kv_index.engines import content, holders_of, source, store

A = source("a")
B = source("b")


def test_engine_block_keys_are_separate_per_pod_model_rank_and_group(
    backend: Backend,
) -> None:
    others = [source("b"), source("a", "other"), source("a", "m", 1)]
    backend.apply(A, [store([1], [11]), store([1], [15], group=1)])
    for number, other in enumerate(others):
        backend.apply(other, [store([1], [12 + number])])
    backend.apply(A, [Remove(0, "gpu", [1])])
    assert set(content(backend, range(11, 16))) == {12, 13, 14, 15}
    assert backend.covered_keys(A, [(0, 1), (1, 1)])[0] is None
    assert _plain(backend.covered_keys(A, [(1, 1)])[0]) == (15,)


def test_clearing_a_pod_removes_the_blocks_of_all_its_engines(backend: Backend) -> None:
    backend.apply(A, [store([1], [11])])
    backend.apply(source("a", "other", 2), [store([1], [12], group=1)])
    backend.apply(B, [store([1], [11])])
    assert backend.clear("a") == 2
    assert content(backend, [11, 12]) == {11: {("b", "gpu")}}
    assert backend.pods() == ["b"]
    assert backend.clear("a") == 0 == backend.clear("nobody")


def test_pod_added_after_other_pods_were_removed_has_only_its_own_blocks(backend: Backend) -> None:
    for number in range(20):
        pod = source(f"pod{number}")
        backend.apply(pod, [store([1, 2], [11, 100 + number])])
        assert holders_of(backend, 11) == {(pod.pod, "gpu")}
        backend.clear(pod.pod)
    backend.apply(A, [store([1], [99])])
    assert content(backend, range(200)) == {99: {("a", "gpu")}}
    assert max(backend.lookup([99]).copies[0]) < 1 << 4


def test_scoring_candidates_for_an_adapter_are_the_pods_with_its_blocks(backend: Backend) -> None:
    backend.apply(A, [store([1], [11], adapter="alice")])
    backend.apply(B, [store([1], [11])])
    assert [Index(backend).base_model(name) for name in ("alice", "m", "bob")] == ["m", "m", "bob"]
    holders = backend.lookup([11]).holders
    assert [holder.source.pod for _, holder in holders.members(holders.candidates("alice"))] == [
        "a"
    ]
    assert [holder.source.pod for _, holder in holders.members(holders.candidates("m"))] == [
        "a",
        "b",
    ]
    backend.clear("a")
    assert backend.lookup([11]).holders.candidates("alice") == 0


def test_pod_model_and_adapter_names_may_contain_any_characters(backend: Backend) -> None:
    odd = IndexedEngine("10.0.0.1:8000@x\n\0é", 'org/"model"@1 {}', 3)
    backend.apply(odd, [store([1], [11], "tier: x", adapter="a b\0c")])
    assert holders_of(backend, 11) == {(f"{odd.pod}/3", "tier: x")}
    assert backend.lookup([11]).holders.candidates("a b\0c")
    backend.apply(odd, [Remove(0, "tier: x", [1])])
    assert holders_of(backend, 11) == set()


def test_block_keys_of_64_bits_are_stored_exactly(backend: Backend) -> None:
    largest = (1 << 64) - 1
    backend.apply(A, [store([largest, 1 << 63], [largest - 1, (1 << 53) + 1])])
    assert set(content(backend, [largest - 1, (1 << 53) + 1, 1 << 53, largest])) == {
        largest - 1,
        (1 << 53) + 1,
    }
    assert _plain(backend.covered_keys(A, [(0, largest)])[0]) == (largest - 1,)


def test_concurrent_stores_and_clears_leave_no_blocks_in_the_index(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.extensions.kv_index.memory.SLICE", 1)
    # Calls of Redis run in ten native threads, and each of them changes the holders all the time.
    monkeypatch.setattr("app.extensions.kv_index.redis_backend.MAX_LOOKUP_ATTEMPTS", 1000)

    def work(number: int) -> None:
        mine = source(f"pod{number}")
        for step in range(10):
            backend.apply(
                mine, [store([number * 100 + key], [key]) for key in range(step, step + 3)]
            )
            backend.lookup(list(range(10)))
            gevent.sleep(0)
            backend.apply(mine, [Clear()])

    gevent.joinall([gevent.spawn(work, number) for number in range(10)], raise_error=True)
    assert content(backend, range(20)) == {}
    assert backend.size().copies == 0


def _plain(owned: object) -> tuple[int, ...]:
    return owned if isinstance(owned, tuple) else (owned,)  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("address", "redis_address"),
    [
        ("rediss://h:1/2", "rediss://h:1/2"),
        ("valkey://h:1", "redis://h:1"),
        ("valkeys://h:1", "rediss://h:1"),
        ("unix:///s", "unix:///s"),
        ("h:1", "redis://h:1"),
    ],
)
def test_redis_and_valkey_addresses_in_the_format_of_llm_d_are_accepted(
    address: str, redis_address: str
) -> None:
    from app.extensions.kv_index.redis_backend import redis_url

    assert redis_url(address) == redis_address


# The index in memory: its bound, and what it forgets.


def test_least_recently_used_block_is_evicted_above_the_bound() -> None:
    backend = MemoryBackend(2)
    backend.apply(A, [store([1], [11]), store([2], [12])])
    backend.lookup([11])
    backend.apply(A, [store([3], [13])])
    assert set(content(backend, [11, 12, 13])) == {11, 13}
    backend.apply(A, [store([1], [11])])  # stored again: in use
    backend.apply(B, [store([4], [14])])
    assert set(content(backend, [11, 13, 14])) == {11, 14}
    assert backend.size().evicted == 2


def test_evicted_block_can_be_stored_again_and_removed() -> None:
    backend = MemoryBackend(2)
    backend.apply(A, [store([1, 2, 3], [11, 12, 13])])
    assert set(content(backend, [11, 12, 13])) == {12, 13}
    backend.apply(A, [Offload(0, "gpu", [1])])
    assert 11 in content(backend, [11])
    assert backend.apply(A, [Remove(0, "gpu", [1, 2, 3])]).unknown == 0
    assert backend.size().copies == 0


def test_hash_maps_of_the_index_drop_evicted_blocks() -> None:
    backend = MemoryBackend(100)
    for number in range(0, 3_000, 10):
        keys = range(number, number + 10)
        backend.apply(A, [store(keys, keys)])
    assert backend.size().copies == 100
    assert len(backend._maps[0].covered) < 100 * 5 / 4 + 64 + 20


@given(st.lists(st.lists(st.integers(0, 65_535), min_size=1, max_size=3), min_size=1, max_size=3))
def test_estimated_memory_per_block_copy_has_a_maximum(
    numbers: list[list[int]],
) -> None:
    copies = tuple(
        sum(1 << number for number in set(numbers_of_copy)) for numbers_of_copy in numbers
    )
    assert weigh_bytes(copies) <= MAX_COPY_BYTES * weigh_copies(copies)


def test_repeated_stores_of_a_block_are_counted_only_up_to_a_memory_limit() -> None:
    backend = MemoryBackend(repeats_bytes=2 * REPEAT_BYTES)
    keys = [1, 2, 3]
    backend.apply(A, [store(keys, keys), store(keys, keys), Remove(0, "gpu", keys)])
    assert set(content(backend, keys)) == {1, 2}
    backend.apply(A, [Remove(0, "gpu", [1]), store([2], [2]), store([3], [3]), store([3], [3])])
    backend.apply(A, [Remove(0, "gpu", keys)])
    assert set(content(backend, keys)) == {2, 3}
