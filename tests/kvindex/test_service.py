"""The index as a service, with its threads and real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import gevent
import pytest
import zmq
from gevent.event import Event
from prometheus_client.parser import text_string_to_metric_families

from app.kvcache.events import EventBatch, encoder
from app.kvcache.memo import Memo
from app.kvindex.backend import BackendUnavailable, RedisSettings
from app.kvindex.event_pool import Pool, PoolSettings, Shard
from app.kvindex.index import IndexSettings
from app.kvindex.memory import MemoryBackend, weigh_bytes
from app.kvindex.metrics import EVENT_LOSSES, MESSAGE_LOSSES
from app.kvindex.pods import PodEndpoint
from app.kvindex.redis_backend import RedisBackend
from app.kvindex.service import KvIndex, KvIndexSettings, open_backend
from app.kvindex.streams import Message
from app.kvindex.subscriber import Subscriber, SubscriberSettings
from app.tokenization import LocalTokenizer, default_tokenizer
from app.tokenization.base import TokenizerLoadError
from app.tokenization.files import TokenizerFolder
from tests.kvindex.engines import stored
from tests.kvindex.kinds import llama_3
from tests.kvindex.publisher import LOCAL, Engine, until

PROMPT = list(range(100, 120))
SUBSCRIBER = SubscriberSettings(bind=f"{LOCAL}:*", model="m")


def load(model: str) -> LocalTokenizer:
    if model != "m":
        raise TokenizerLoadError(f"There is no model {model}.")
    return default_tokenizer()


def settings(**more: object) -> KvIndexSettings:
    fixed = {"index": IndexSettings(block_size=4), "subscriber": SUBSCRIBER}
    return KvIndexSettings(**(fixed | more))  # type: ignore[arg-type]


@pytest.fixture
def index() -> Iterator[KvIndex]:
    made = KvIndex(settings(), load)
    made.start()
    yield made
    made.close()


@pytest.fixture
def engine(index: KvIndex) -> Iterator[Engine]:
    context = zmq.Context()
    made = Engine(context, "kv@a@m", index.address)
    yield made
    made.close()
    context.destroy(linger=0)


def meet(index: KvIndex, engine: Engine) -> None:
    """Until messages arrive."""
    while not index.stats().skipped_messages.get("bad_frames"):
        engine.send_frames(engine.topic, b"?")
        gevent.sleep(0.001)


def test_events_come_in_and_scores_go_out(index: KvIndex, engine: Engine) -> None:
    meet(index, engine)
    engine.publish(stored([1, 2], PROMPT[:8]))
    until(lambda: bool(index.score_tokens("m", PROMPT)))
    assert index.score_tokens("m", PROMPT)[0].matched == 2
    stats = index.stats()
    assert stats.pods == ["a"] and stats.size is not None and stats.size.copies == 2
    assert [(stream.pod, stream.model, stream.sequence) for stream in stats.streams] == [("a", "m", 0)]
    assert stats.queued == 0


def test_messages_may_come_without_a_socket(index: KvIndex) -> None:
    payload = encoder()(EventBatch(1.0, [stored([1], PROMPT[:4])], 0))
    index.receive(Message("b", "m", 0, payload))
    until(lambda: bool(index.score_tokens("m", PROMPT)))


def test_a_message_for_which_there_is_no_room_is_left(
    index: KvIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = list[Message]()
    monkeypatch.setattr(Pool, "put", lambda pool, message: put.append(message))
    sent = Message("b", "m", 0, b"")
    index.receive(sent)
    monkeypatch.setattr(Pool, "full", True)
    index.receive(sent)
    assert put == [sent]


def test_it_begins_once(index: KvIndex) -> None:
    address, greenlets = index.address, list(index._greenlets)
    index.start()
    assert address is not None and index.address == address and index._greenlets == greenlets


def test_what_it_keeps_has_names(index: KvIndex) -> None:
    further = Memo[str, str](1000)
    made = KvIndex(settings(), load, caches={"further": further})
    assert made.caches["further"] is further and made.caches["index blocks"] is made.index.backend
    started = {"index messages", "index topics"}
    assert not started & made.caches.keys() and started < index.caches.keys()
    assert all(cache.size_bytes <= cache.limit_bytes for cache in index.caches.values())
    made.close()


def test_special_tokens_are_those_that_are_asked_for() -> None:
    folder = TokenizerFolder(tokenizer_file=Path("tokenizer.json"))
    tokenizer = LocalTokenizer(llama_3(), folder, "test")
    made = KvIndex(settings(), lambda model: tokenizer)
    text = "The capital of France"
    plain = made.tokenization.encode("m", text, add_special_tokens=False)
    assert made.tokenization.encode("m", text) == made.tokenization.encode("m", text, True) == [1, *plain]
    made.close()


def test_texts_are_scored_by_their_tokens(index: KvIndex) -> None:
    tokens = index.tokenization.encode("m", "The sea is deep, and so is the sky.")
    payload = encoder()(EventBatch(1.0, [stored([1], tokens[:4])], 0))
    index.receive(Message("b", "m", 0, payload))
    until(lambda: bool(index.score_tokens("m", tokens)))
    messages = [{"role": "user", "content": "hello"}]
    assert index.tokenization.encode_chat("m", messages) == default_tokenizer().encode_chat(messages)
    assert index.tokenization.render_chat("m", messages) == default_tokenizer().render_chat(messages)
    with pytest.raises(TokenizerLoadError):
        index.tokenization.encode("unheard", "hello")


def test_metrics_are_valid_and_name_every_loss(index: KvIndex, engine: Engine) -> None:
    meet(index, engine)
    engine.publish(stored([1], PROMPT[:4]), stored([2], PROMPT[4:8], 99))
    until(lambda: bool(index.score_tokens("m", PROMPT)))
    families = {family.name: family for family in text_string_to_metric_families(index.metrics_text())}
    assert all(name.startswith("kvcache_") for name in families)
    samples = {
        (sample.name, *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert samples["kvcache_index_admissions_total",] == 1
    for hits in ("lookup_hits", "max_pod_hit_count"):
        assert samples[f"kvcache_index_{hits}_total",] == 1
    assert samples["kvcache_index_blocks",] == samples["kvcache_events_pods",] == 1
    assert samples["kvcache_events_skipped_total", "unknown_parent"] == 1
    for reason in MESSAGE_LOSSES:
        assert ("kvcache_events_messages_skipped_total", reason) in samples
    for reason in EVENT_LOSSES:
        assert ("kvcache_events_skipped_total", reason) in samples


@pytest.mark.slow
def test_an_address_that_is_taken_is_an_error_and_can_be_tried_again(index: KvIndex) -> None:
    taken = SubscriberSettings(bind=index.address, model="m")
    other = KvIndex(settings(subscriber=taken), load)
    for _ in range(2):
        with pytest.raises(zmq.ZMQError):
            other.start()
    index.close()
    until(lambda: _starts(other))
    other.close()


def _starts(index: KvIndex) -> bool:
    try:
        index.start()
    except zmq.ZMQError:
        return False
    return True


def test_what_never_began_can_be_asked_and_closed() -> None:
    made = KvIndex(settings(), load)
    assert made.address is None and made.stats().streams == []
    assert made.score_tokens("m", PROMPT) == []
    made.close()


def test_a_backend_that_is_away_leaves_sizes_open() -> None:
    redis = RedisSettings(url="redis://127.0.0.1:1", timeout_s=0.2)
    made = KvIndex(settings(backend="redis", redis=redis), load)
    assert made.stats().size is None
    assert "kvcache_index_blocks" in made.metrics_text()
    made.close()


def test_messages_that_wait_for_the_backend_are_taken_up_without_another_one(
    index: KvIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.kvindex.service.IDLE_S", 3600.0)
    apply, asked = index.index.backend.apply, count()

    def flaky(*operations: Any) -> Any:
        if next(asked) < 2:
            raise BackendUnavailable("away")
        return apply(*operations)

    monkeypatch.setattr(index.index.backend, "apply", flaky)
    payload = encoder()(EventBatch(1.0, [stored([1], PROMPT[:4])], 0))
    index.receive(Message("b", "m", 0, payload))
    until(lambda: bool(index.score_tokens("m", PROMPT)))


def test_after_an_error_a_thread_waits_and_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []
    step, wait = Subscriber.step, Subscriber.wait

    def fail_twice(subscriber: Subscriber, now: float) -> bool:
        done.append("step")
        if done.count("step") <= 2:
            raise RuntimeError("a fault")
        return step(subscriber, now)

    def noted(subscriber: Subscriber, timeout_s: float) -> None:
        done.append("wait")
        wait(subscriber, 0.01)

    monkeypatch.setattr(Subscriber, "step", fail_twice)
    monkeypatch.setattr(Subscriber, "wait", noted)
    made = KvIndex(settings(), load)
    made.start()
    until(lambda: len(done) > 5)
    made.close()
    assert done[:5] == ["step", "wait", "step", "wait", "step"]
    assert caplog.text.count("RuntimeError: a fault") == 2


@pytest.mark.parametrize(("waiting", "pause_s"), [(False, 1.0), (True, 0.02)])
def test_a_queue_with_more_to_do_goes_on_and_others_wait(
    waiting: bool, pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[object] = []
    more = iter([True, True, False, False, True])
    init = Shard.__init__

    class Noting(Event):
        def wait(self, timeout: float | None = None) -> bool:
            done.append(timeout)
            return bool(super().wait(0.001))

    def noted(shard: Shard, *given: Any) -> None:
        init(shard, *given)
        shard.wake = Noting()

    monkeypatch.setattr(Shard, "__init__", noted)
    monkeypatch.setattr(Shard, "waiting", waiting)
    monkeypatch.setattr(Shard, "step", lambda shard, now: done.append("step") or next(more, False))
    made = KvIndex(settings(pool=PoolSettings(shards=1)), load)
    made.start()
    until(lambda: len(done) > 8)
    made.close()
    assert done[:8] == ["step", "step", "step", pause_s, "step", pause_s, "step", "step"]


def test_backends_are_chosen_by_name() -> None:
    assert isinstance(open_backend(KvIndexSettings()), MemoryBackend)
    costly = open_backend(KvIndexSettings(backend="cost-aware", most_bytes=1 << 20))
    assert isinstance(costly, MemoryBackend)
    assert costly.table.weigh is weigh_bytes and costly.size().bound == 1 << 20
    assert isinstance(open_backend(KvIndexSettings(backend="redis")), RedisBackend)
    with pytest.raises(ValueError):
        open_backend(KvIndexSettings(backend="other"))  # type: ignore[arg-type]
    with pytest.raises(ValueError):
        KvIndex(settings(targets=["nonsense"]), load)


def test_a_source_that_is_slow_delays_no_other(index: KvIndex, engine: Engine) -> None:
    class Slow:
        targets: list[PodEndpoint] = []
        asked = 0

        def refresh(self) -> None:
            self.asked += 1
            gevent.sleep(0.3)
            self.targets = [PodEndpoint("inproc://slow")]

    slow = Slow()
    made = KvIndex(settings(targets=["127.0.0.1:1"]), load)
    made._sources = [slow, *made._sources]
    made.start()
    until(lambda: made.stats().targets)
    assert made.stats().targets == ["tcp://127.0.0.1:1"] and slow.asked == 1
    until(lambda: len(made.stats().targets) == 2)
    made.close()
