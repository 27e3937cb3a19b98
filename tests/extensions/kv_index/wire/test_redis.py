"""What only a shared backend has to do: be shared, be away, come back, and come back empty."""

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import gevent
import pytest
import redis

from app.extensions.kv_index.backend import BackendUnavailableError, Clear, Remove, Stamp
from app.extensions.kv_index.holders import HolderLimitError
from app.extensions.kv_index.messages import PublishedMessage
from app.extensions.kv_index.redis_backend import RedisBackend
from tests.core.kvcache.sockets import until
from tests.extensions.kv_index.engines import PROMPT, block, content, holders_of, source, store
from tests.extensions.kv_index.publisher import SteppedIndexer, stepped_indexer
from tests.extensions.kv_index.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.redis
A = source("a")
B = source("b")
_numbers = count()
A = source("a")


@pytest.fixture
def namespace() -> str:
    return f"shared{next(_numbers)}"


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[RedisServer]:
    """One that a test may kill."""
    with redis_server(tmp_path, durable=True) as server:
        yield server


def connect(server: RedisServer, namespace: str = "x", **settings: object) -> RedisBackend:
    return RedisBackend(server.url, namespace=namespace, **settings)  # type: ignore[arg-type]


def test_indexers_that_share_redis_have_equal_scores(
    redis_process: RedisServer, namespace: str
) -> None:
    first = connect(redis_process, namespace)
    second = connect(redis_process, namespace)
    first.apply(A, [store([1, 2], [11, 12])])
    assert content(second, [11, 12]) == {11: {("a", "gpu")}, 12: {("a", "gpu")}}
    second.apply(B, [store([1], [11], "cpu", adapter="alice")])
    second.apply(A, [Remove(0, "gpu", [1])])
    assert content(first, [11, 12]) == {11: {("b", "cpu")}, 12: {("a", "gpu")}}
    assert first.lookup([11]).holders.candidates("alice")
    assert first.size() == second.size() and first.pods() == ["a", "b"]


def test_event_batch_that_several_indexers_receive_is_applied_once(
    redis_process: RedisServer, namespace: str
) -> None:
    first = connect(redis_process, namespace)
    second = connect(redis_process, namespace)
    steps = [[store([1], [11])], [store([1], [11])], [Remove(0, "gpu", [1])]]
    for sequence, operations in enumerate(steps):
        stamp = Stamp(sequence, 100.0 + sequence)
        assert first.apply(A, operations, stamp).applied
        assert not second.apply(A, operations, stamp).applied
    assert holders_of(first, 11) == {("a", "gpu")}
    assert second.position(A) == Stamp(2, 102.0) and second.position(B) is None


def test_restart_detected_by_several_indexers_clears_the_pod_once(
    redis_process: RedisServer, namespace: str
) -> None:
    first = connect(redis_process, namespace)
    second = connect(redis_process, namespace)
    first.apply(A, [store([1, 2], [11, 12])], Stamp(50, 100.0))
    anew = Stamp(0, 200.0, restart=True)
    first.apply(A, [store([1], [21])], anew)
    first.apply(A, [store([2], [22])], Stamp(1, 201.0))
    assert not second.apply(A, [store([3], [13])], Stamp(51, 101.0)).applied  # of its former life
    assert not second.apply(A, [store([1], [21])], anew).applied
    assert not second.apply(A, [store([2], [22])], Stamp(1, 201.0)).applied
    assert set(content(first, [11, 12, 13, 21, 22])) == {21, 22}


def test_indexer_that_starts_later_completes_an_interrupted_clear(
    redis_process: RedisServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = connect(redis_process, namespace)
    keys = range(1, 1500)
    backend.apply(A, [store(keys, keys)])

    def interrupted_sweep() -> int:
        return 0

    monkeypatch.setattr(backend, "sweep", interrupted_sweep)
    backend.apply(A, [Clear(), store([5], [9_999])])
    assert content(backend, [1, 5, 1499, 9_999]) == {9_999: {("a", "gpu")}}
    restarted = connect(redis_process, namespace)  # as at the start of another indexer
    assert restarted.apply(A, [store([6], [9_999])]).removed == 1499
    assert restarted.apply(A, []).removed == 0
    assert backend.size().copies == 1
    assert redis_process.client().keys(f"{namespace}:b:*") == [
        f"{namespace}:b:gpu:{9_999:016x}".encode()
    ]


def test_redis_index_rejects_events_of_a_pod_above_the_maximum(
    redis_process: RedisServer, namespace: str
) -> None:
    backend = connect(redis_process, namespace, max_holders=2)
    for pod in (A, B):
        backend.apply(pod, [store([1], [11])])
    with pytest.raises(HolderLimitError):
        backend.apply(source("c"), [store([2], [12]), Clear()])
    assert content(backend, [11, 12]) == {11: {("a", "gpu"), ("b", "gpu")}}
    backend.clear("a")
    backend.apply(source("c"), [store([1], [11])])
    assert holders_of(backend, 11) == {("b", "gpu"), ("c", "gpu")}


def test_index_data_of_one_redis_namespace_is_invisible_in_another(
    redis_process: RedisServer,
) -> None:
    first = connect(redis_process, "one")
    second = connect(redis_process, "two")
    first.apply(A, [store([1], [11])])
    assert content(second, [11]) == {} and second.pods() == []
    assert all(
        key.startswith((b"one:", b"two:", b"test", b"shared"))
        for key in redis_process.client().scan_iter()
    )
    first.clear("a")


def test_blocks_expire_after_the_ttl(redis_process: RedisServer, namespace: str) -> None:
    backend = connect(redis_process, namespace, ttl_s=1)
    backend.apply(A, [store([1], [11])])
    client = redis_process.client()
    assert 0 < client.ttl(f"{namespace}:b:gpu:{11:016x}") <= 1
    client.pexpire(f"{namespace}:b:gpu:{11:016x}", 1)
    while content(backend, [11]):
        time.sleep(0.001)
    assert backend.apply(A, [Remove(0, "gpu", [1])]).unknown == 0
    assert not client.exists(f"{namespace}:b:gpu:{11:016x}")


def put(indexer: SteppedIndexer, sequence: int, **fields: object) -> None:
    ts = 1000.0 + sequence
    payload = indexer.engines[0].pack(block(sequence), ts=ts)
    indexer.engines[0].batches[sequence] = payload
    indexer.pool.put(PublishedMessage("a", "m", sequence, payload, **fields))  # type: ignore[arg-type]


def test_redis_outage_loses_no_event(own_server: RedisServer) -> None:
    with stepped_indexer(connect(own_server, timeout_s=0.5)) as indexer:
        indexer.engine(connect=False)
        put(indexer, 0)
        indexer.wait_for_copies(1)
        own_server.kill()
        workers = [gevent.spawn(indexer.pool.run, shard) for shard in indexer.pool.shards]
        for sequence in range(1, 6):
            put(indexer, sequence)
        gevent.sleep(0.2)
        assert len(indexer.pool) == 5
        own_server.start()

        def is_queue_empty() -> bool:
            return len(indexer.pool) == 0

        until(is_queue_empty)
        gevent.killall(workers)
        assert indexer.matched(PROMPT) == {"a": 6}
        assert indexer.index.metrics.skipped_messages == {} == indexer.index.metrics.skipped_events
        assert indexer.index.backend.loss_count == 0


def test_replays_refill_redis_after_data_loss(own_server: RedisServer) -> None:
    with stepped_indexer(connect(own_server, timeout_s=0.5)) as indexer:
        engine = indexer.engine(connect=False)
        for sequence in range(3):
            put(indexer, sequence, replay=engine.replay)
        indexer.wait_for_copies(3)
        own_server.kill()
        own_server.forget()
        own_server.start()
        put(indexer, 3, replay=engine.replay)
        indexer.wait_for_matches(PROMPT, {"a": 4})
        assert indexer.index.backend.loss_count == 1
        assert "index_backend_losses_total 1.0" in indexer.index.metrics.render({}, 1)
        assert indexer.index.metrics.skipped_events == {}


def test_restarted_indexer_replays_missed_batches(own_server: RedisServer) -> None:
    with stepped_indexer(connect(own_server)) as indexer:
        engine = indexer.engine(connect=False)
        for sequence in range(3):
            put(indexer, sequence)
        indexer.wait_for_copies(3)
        earlier_batches = dict(engine.batches)
    with stepped_indexer(connect(own_server)) as indexer:
        engine = indexer.engine(connect=False)
        engine.batches = earlier_batches | {
            n: engine.pack(block(n), ts=1000.0 + n) for n in range(3, 6)
        }
        put(indexer, 6, replay=engine.replay)
        indexer.wait_for_matches(PROMPT, {"a": 7})
        assert engine.replay_starts == [3]
        assert indexer.index.metrics.skipped_messages == {}


def test_lua_scripts_missing_in_redis_are_loaded_again(
    redis_process: RedisServer, namespace: str
) -> None:
    backend = connect(redis_process, namespace)
    backend.apply(A, [store([1], [11])])
    redis_process.client().script_flush()
    backend.apply(A, [store([2], [12])])
    assert len(content(backend, [11, 12])) == 2


def test_broken_redis_connection_is_reopened(redis_process: RedisServer, namespace: str) -> None:
    backend = connect(redis_process, namespace)
    backend.apply(A, [store([1], [11])])
    redis_process.client().client_kill_filter(_type="normal", skipme=True)
    assert holders_of(backend, 11) == {("a", "gpu")}


def test_redis_without_free_memory_counts_as_unavailable(own_server: RedisServer) -> None:
    backend = connect(own_server)
    client: redis.Redis = own_server.client()
    client.config_set("maxmemory", 1)
    with pytest.raises(BackendUnavailableError):
        backend.apply(A, [store([1], [11])])
    client.config_set("maxmemory", 0)
    backend.apply(A, [store([1], [11])])
    assert holders_of(backend, 11) == {("a", "gpu")}
