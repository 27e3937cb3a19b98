"""The index as the settings ask for it, beside a server or alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gevent
import pytest
import zmq

from app.kvcache.events import EventBatch
from app.kvindex.backend import Remove
from app.kvindex.service import KvIndex, Listening, aliases, fed, index_of
from app.tokenization import default_tokenizer
from app.tokenization.base import TokenizerError
from config import ConfigError
from config.settings import KVIndexSettings, ModelSettings, Settings
from tests.kvindex.engines import stored
from tests.kvindex.held import source, store
from tests.kvindex.publisher import until

PROMPT = list(range(100, 120))
MODEL = ModelSettings(model="org/m", served_model_name=("m", "n"))


def made(**asked: Any) -> KvIndex:
    """An index of these settings, which does not listen."""
    return index_of(Settings(model=MODEL, kvindex=KVIndexSettings(**asked)), default_tokenizer())


@pytest.mark.parametrize(
    ("asked", "bind"),
    [
        ({}, None),
        ({"role": "indexer"}, "tcp://*:5557"),
        ({"role": "indexer", "kv_index_pods": ("h:1",)}, None),
        ({"kv_index_pods": ("h:1",)}, None),
        ({"kv_index_bind": "tcp://*:7"}, "tcp://*:7"),
        ({"role": "indexer", "kv_index_pods": ("h:1",), "kv_index_bind": "tcp://*:7"}, "tcp://*:7"),
    ],
)
def test_an_indexer_listens_unless_it_is_given_pods(asked: dict[str, Any], bind: str | None) -> None:
    index = made(**asked)
    assert index._settings.subscriber.bind == bind
    index.close()


@pytest.mark.parametrize(("repeats", "copies"), [("copies", 1), ("reports", 0)])
def test_repeats_are_what_the_settings_say(repeats: str, copies: int) -> None:
    index = made(kv_index_repeats=repeats)
    backend = index.index.backend
    backend.apply(source(), [store([1], [11]), store([1], [11]), Remove(0, "gpu", [1])])
    assert backend.size().copies == copies
    assert index._settings.redis.count_repeats == bool(copies)
    index.close()


def test_sizes_are_what_the_settings_say() -> None:
    index = made(
        kv_index_backend="cost-aware", kv_index_memory_mb=3, kv_index_max_message_mb=2, kv_index_ttl=1.5
    )
    assert index.index.backend.size().bound == 3 << 20
    assert (index._settings.pool.most_payload_bytes, index._settings.redis.ttl_s) == (2 << 20, 2)
    index.close()


def test_models_and_folders_that_are_named_have_tokenizers_and_no_others(
    tmp_path: Path,
) -> None:
    index = made()
    for name in ("org/m", "m", "n"):
        assert index.tokenization.encode(name, "hello") == default_tokenizer().encode("hello", True)
    with pytest.raises(TokenizerError, match="There is no tokenizer for the model `other/name`"):
        index.tokenization.encode("other/name", "hello")
    index.close()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/tokenizer.json").write_text("{}")
    index = made(kv_index_tokenizer_dir=str(tmp_path))
    with pytest.raises(TokenizerError, match="`mine` cannot be loaded"):
        index.tokenization.encode("mine", "hello")
    index.close()


def test_names_of_the_model_are_those_that_its_pods_publish() -> None:
    assert aliases(Settings(model=MODEL)) == {"m": "org/m", "n": "org/m"}


@pytest.mark.parametrize("asked", [{"kv_index_pods": ("nonsense",)}, {"kv_index_redis_url": "http://h:1"}])
def test_an_address_that_is_none_is_told_by_its_setting(asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="setting kv-index-pods or kv-index-redis-url: "):
        made(kv_index_backend="redis", **asked)


@pytest.mark.parametrize(("topic", "pod"), [("kv@a@org/m", "a"), ("", ""), ("events", "events")])
def test_what_our_own_publisher_publishes_is_taken(topic: str, pod: str) -> None:
    index = made(kv_index_block_size=4)
    index.start()
    fed(index, "org/m")(topic, 0, EventBatch(1.0, [stored([1], PROMPT[:4])], 0))
    until(lambda: [score.pod for score in index.score_tokens("org/m", PROMPT)] == [pod])
    index.close()


@pytest.mark.slow
def test_it_listens_as_soon_as_its_address_is_free(caplog: pytest.LogCaptureFixture) -> None:
    first = made(kv_index_bind="tcp://127.0.0.1:*")
    first.start()
    second = made(kv_index_bind=str(first.address))
    listening = Listening(second, retry_s=0.01)
    listening.start()
    gevent.sleep(0.1)
    assert second._greenlets == [] and caplog.text.count("it cannot listen yet, trying on") == 1
    first.close()
    until(lambda: second._greenlets)
    assert second.address is not None and len(caplog.records) == 1
    listening.close()


def test_one_that_is_closed_tries_no_more() -> None:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    socket = context.socket(zmq.SUB)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    index = made(kv_index_bind=f"tcp://127.0.0.1:{port}")
    listening = Listening(index, retry_s=0.01)
    listening.start()
    gevent.sleep(0.03)
    listening.close()
    context.destroy(linger=0)
    gevent.sleep(0.1)
    assert index._greenlets == []
