"""The index as a service, with its greenlets and real sockets, as the settings ask for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gevent
import pytest
import zmq
from gevent.event import Event
from prometheus_client.parser import text_string_to_metric_families

from app.core.base.background import BackgroundLoops
from app.core.engine.kvcache.events import EventBatch
from app.core.settings import settings_type
from app.core.text.base import TokenizerError, TokenizerLoadError
from app.core.text.huggingface import LocalTokenizer, default_tokenizer
from app.extensions.kv_index.backend import Backend
from app.extensions.kv_index.index import Index
from app.extensions.kv_index.memory import MemoryBackend, weigh_bytes
from app.extensions.kv_index.memory_limits import IndexLimits
from app.extensions.kv_index.metrics import EVENT_LOSSES, MESSAGE_LOSSES, IndexMetrics
from app.extensions.kv_index.pods import PodEndpoint, TargetSource
from app.extensions.kv_index.resources import PoolSettings
from app.extensions.kv_index.service import (
    TOKENIZER_TIMEOUT_S,
    BatchListener,
    KvIndex,
    build_index,
    open_backend,
)
from app.extensions.kv_index.settings import KVIndexSettings
from app.extensions.kv_index.subscriber import Subscriber, SubscriberSettings
from app.extensions.kv_index.tokenization import WORKERS, Tokenization
from config import ConfigError
from config.settings import ModelSettings, ServerSettings
from tests.core.kvcache.sockets import until
from tests.extensions.kv_index.engines import stored
from tests.extensions.kv_index.publisher import LOCAL, FakeEngine
from tests.running_server import ROOT

PROMPT = list(range(100, 120))
SUBSCRIBER = SubscriberSettings(bind=f"{LOCAL}:*", model="m")
LIMITS = IndexLimits.of(ServerSettings(server_memory=1 << 30), is_indexer=True)
MODEL = ModelSettings(model="org/m", served_model_name=("m", "n"))


def load(model: str) -> LocalTokenizer:
    if model != "m":
        raise TokenizerLoadError(f"There is no model {model}.")
    return default_tokenizer()


def make(
    backend: Backend | None = None, subscriber: SubscriberSettings = SUBSCRIBER, **options: Any
) -> KvIndex:
    index = Index(backend or MemoryBackend(), block_size=4)
    return KvIndex(index, Tokenization(load, index.metrics, 10.0), subscriber, **options)


@pytest.fixture
def index() -> Iterator[KvIndex]:
    index = make()
    index.open()
    yield index
    index.close()


@pytest.fixture
def engine(index: KvIndex) -> Iterator[FakeEngine]:
    context = zmq.Context()
    fake_engine = FakeEngine(context, "kv@a@m", index.address)
    yield fake_engine
    fake_engine.close()
    context.destroy(linger=0)


def meet(index: KvIndex, engine: FakeEngine) -> None:
    while not index.index.metrics.skipped_messages["bad_frames"]:
        engine.send_frames(engine.topic, b"?")
        gevent.sleep(0.001)


def test_index_metrics_are_valid_prometheus_text(index: KvIndex, engine: FakeEngine) -> None:
    meet(index, engine)
    engine.publish(stored([1], PROMPT[:4]), stored([2], PROMPT[4:8], 99))

    def is_prompt_indexed() -> bool:
        return bool(index.index.score("m", PROMPT))

    until(is_prompt_indexed)
    families = {
        family.name: family for family in text_string_to_metric_families(index.metrics_text())
    }
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


def test_indexer_latency_histograms_have_the_buckets_of_llm_d() -> None:
    llm_d_bounds = [
        *("0.005", "0.01", "0.025", "0.05", "0.1", "0.25", "0.5"),
        *("1.0", "2.5", "5.0", "10.0", "+Inf"),
    ]
    metrics = IndexMetrics()
    metrics.record_lookup(0.0002, 3)
    metrics.record_tokenization("t", 0.3, 5)
    metrics.record_rendering("t", 0.02)
    text = metrics.render({})
    samples = [
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    ]
    for name, faster in (
        ("index_lookup", "0.0001 0.00025 0.0005 0.001 0.0025"),
        ("tokenization_render_chat_template", ""),
        ("tokenization_tokenization", ""),
    ):
        bucket_name = f"kvcache_{name}_latency_seconds_bucket"
        buckets = [sample for sample in samples if sample.name == bucket_name]
        assert [sample.labels["le"] for sample in buckets] == faster.split() + llm_d_bounds
    assert 'index_lookup_latency_seconds_bucket{le="0.0001"} 0' in text
    assert 'index_lookup_latency_seconds_bucket{le="0.00025"} 1' in text
    assert 'tokenization_tokenized_tokens_total{tokenizer="t"} 5' in text


def test_index_size_is_unknown_while_the_backend_is_unavailable() -> None:
    from app.extensions.kv_index.redis_backend import RedisBackend

    kv_index = make(RedisBackend("redis://127.0.0.1:1", timeout_s=0.2))
    assert kv_index.stats()["size"] is None
    assert "kvcache_index_blocks" in kv_index.metrics_text()
    kv_index.close()


def test_event_subscriber_of_the_index_continues_after_an_internal_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    step = Subscriber.step
    steps: list[None] = []

    def fail_twice(subscriber: Subscriber, now: float) -> bool:
        steps.append(None)
        if len(steps) < 3:
            raise RuntimeError("a fault")
        return step(subscriber, now)

    monkeypatch.setattr(Subscriber, "step", fail_twice)
    kv_index = make()
    kv_index.open()

    def has_continued() -> bool:
        return len(steps) > 5

    until(has_continued)
    kv_index.close()
    assert caplog.text.count("RuntimeError: a fault") == 2


def test_kv_index_backend_setting_selects_the_backend() -> None:
    from app.extensions.kv_index.redis_backend import RedisBackend

    assert isinstance(open_backend(KVIndexSettings(), LIMITS), MemoryBackend)
    costly = open_backend(KVIndexSettings(kv_index_backend="cost-aware", kv_index_size=3), LIMITS)
    assert isinstance(costly, MemoryBackend)
    assert costly.table.weigh is weigh_bytes and costly.size().bound == 3 << 20
    shared = open_backend(KVIndexSettings(kv_index_backend="redis", kv_index_ttl=1.5), LIMITS)
    assert isinstance(shared, RedisBackend)
    assert (shared._ttl_s, shared._namespace) == (2, "understudy")
    with pytest.raises(ValueError):
        make(targets=["nonsense"])


def test_slow_pod_source_does_not_delay_other_pod_sources(
    index: KvIndex, engine: FakeEngine
) -> None:
    may_answer = Event()

    class Slow(TargetSource):
        refresh_count = 0

        def refresh(self) -> None:
            self.refresh_count += 1
            may_answer.wait()
            self.targets = [PodEndpoint("inproc://slow")]

    slow = Slow()
    kv_index = make(targets=["127.0.0.1:1"])
    kv_index._sources.insert(0, slow)
    kv_index.open()

    def is_first_source_connected() -> bool:
        return bool(kv_index.stats()["sources"])

    def are_both_sources_connected() -> bool:
        return len(kv_index.stats()["sources"]) == 2

    until(is_first_source_connected)
    assert kv_index.stats()["sources"] == ["tcp://127.0.0.1:1"] and slow.refresh_count == 1
    may_answer.set()
    until(are_both_sources_connected)
    kv_index.close()


def index_of(**options: Any) -> KvIndex:
    """An index of these settings, which does not listen."""
    settings = settings_type()(model=MODEL, kv_index=KVIndexSettings(**options))
    return build_index(settings, default_tokenizer(), BackgroundLoops())


@pytest.mark.parametrize(
    ("options", "bind"),
    [
        ({}, None),
        ({"role": "indexer"}, "tcp://*:5557"),
        ({"role": "indexer", "kv_index_pods": ("h:1",)}, None),
        ({"kv_index_pods": ("h:1",)}, None),
        ({"kv_index_bind": "tcp://*:7"}, "tcp://*:7"),
        ({"role": "indexer", "kv_index_pods": ("h:1",), "kv_index_bind": "tcp://*:7"}, "tcp://*:7"),
    ],
)
def test_indexer_binds_the_default_event_port_unless_pods_are_configured(
    options: dict[str, Any], bind: str | None
) -> None:
    index = index_of(**options)
    assert index._subscriber._settings.bind == bind
    index.close()


def test_only_configured_models_and_folders_have_tokenizers(tmp_path: Path) -> None:
    index = index_of()
    expected = default_tokenizer().encode("hello", True)
    for name in ("org/m", "m", "n"):
        assert list(index.tokenization.encode(name, "hello")) == expected
    with pytest.raises(TokenizerError, match="There is no tokenizer for the model `other/name`"):
        index.tokenization.encode("other/name", "hello")
    index.close()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/tokenizer.json").write_text("{}")
    index = index_of(kv_index_tokenizers=(str(tmp_path),))
    with pytest.raises(TokenizerError, match="`mine` cannot be loaded"):
        index.tokenization.encode("mine", "hello")
    index.close()


@pytest.mark.parametrize(
    "options", [{"kv_index_pods": ("nonsense",)}, {"kv_index_redis_url": "http://h:1"}]
)
def test_error_for_an_invalid_address_names_the_setting(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="setting kv-index-pods or kv-index-redis-url: "):
        index_of(kv_index_backend="redis", **options)


@pytest.mark.parametrize(("topic", "pod"), [("kv@a@org/m", "a"), ("", ""), ("events", "events")])
def test_batches_from_the_local_publisher_are_indexed(topic: str, pod: str) -> None:
    index = index_of(kv_index_block_size=4)
    index.open()
    BatchListener(index, "org/m")(topic, 0, EventBatch(1.0, [stored([1], PROMPT[:4])], 0))

    def is_batch_indexed() -> bool:
        return [score.pod for score in index.index.score("org/m", PROMPT)] == [pod]

    until(is_batch_indexed)
    index.close()


def test_index_listens_as_soon_as_its_address_is_free(caplog: pytest.LogCaptureFixture) -> None:
    first = index_of(kv_index_bind="tcp://127.0.0.1:*")
    first.open()
    second = index_of(kv_index_bind=str(first.address))
    second.start(retry_s=0.01)
    # Ten retries, of which only the first one is logged.
    gevent.sleep(0.1)
    assert second.address is None
    assert caplog.text.count("cannot listen yet; retrying") == 1
    first.close()

    def is_listening() -> bool:
        return second.address is not None

    until(is_listening)
    assert len(caplog.records) == 1
    second.close()


def test_documentation_states_the_fixed_limits() -> None:
    from app.extensions.kv_index.redis_backend import RedisBackend

    page = " ".join((ROOT / "docs/kv-index.md").read_text().split())
    pool = PoolSettings()
    subscriber = SUBSCRIBER
    assert (pool.shards, RedisBackend("h:1")._timeout_s) == (4, 1.0)  # as `REMOVED` says
    assert (WORKERS, TOKENIZER_TIMEOUT_S) == (5, 10.0)
    queue = f"({pool.max_messages:,} messages or {(pool.max_bytes // pool.shards) >> 20} MiB each)"
    assert queue in page and f"there are {pool.max_engines:,} engines already" in page
    assert f"above {subscriber.max_bytes >> 20} MiB the connection is closed" in page
    assert subscriber.max_bytes == pool.max_answer_bytes
