"""LMCacheConnectorV1 and LMCacheMPConnector: chunks in a store, and the figures of the answers."""

from random import Random
from typing import Any

import msgspec
import pytest

from app.core.engine.kvcache.hashing import BlockHasher, ExtraKeys, Placeholder, Prompt
from app.extensions.handoff import handoffs
from app.extensions.handoff.lmcache import ChunkStore, LMCacheDialect, lmcache_answer
from tests.extensions.handoff.pods import BLOCK_TOKENS, TIMEOUT_S, Network, Pod, Request, advance

CHUNK_TOKENS = 16
PROMPT = list(range(44))
"""Two chunks and a part of one; five blocks and a half."""
KINDS = [pytest.param(False, id="alone"), pytest.param(True, id="steps")]
SPEC = {
    "req_id": "r",
    "receiver_host": "pod",
    "receiver_init_port": [2],
    "receiver_alloc_port": [3],
}


@pytest.fixture(params=KINDS)
def steps(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


class Pods:
    """A pod of each role, with a store of its own."""

    def __init__(self, steps: bool, connector: str = "lmcache", *roles: str) -> None:
        self.network = Network()
        self.pods: list[Pod] = []
        for number, role in enumerate(roles or ("kv_both",)):
            store = ChunkStore(
                BLOCK_TOKENS,
                CHUNK_TOKENS,
                keeps_partial_chunks=connector == "lmcache",
                role=role,
            )
            pod = Pod(self.network, number + 1, steps=steps, dialect=LMCacheDialect(), store=store)
            pod.channel.open()
            self.pods.append(pod)

    def complete(self, number: int, prompt: list[int], **params: Any) -> Request:
        """A request whose prompt the cache no longer has."""
        pod = self.pods[number]
        assert pod.cache is not None
        pod.cache.reset()
        request = pod.complete(prompt, params)
        advance(self.network, self.pods, 0.5)
        assert request.end == "length"
        assert pod.is_idle
        return request


def fetched_tokens(request: Request) -> int:
    assert request.outcome is not None
    return request.outcome.fetched_tokens


@pytest.mark.parametrize(
    ("connector", "tokens"), [("lmcache", len(PROMPT) - 1), ("lmcache-mp", 2 * CHUNK_TOKENS)]
)
def test_cached_prompt_is_loaded_from_the_store(steps: bool, connector: str, tokens: int) -> None:
    pods = Pods(steps, connector)
    assert fetched_tokens(pods.complete(0, PROMPT)) == 0
    assert fetched_tokens(pods.complete(0, PROMPT)) == tokens
    assert pods.pods[0].metric("external_prefix_cache_hits_total") == tokens


@pytest.mark.parametrize("connector", ["lmcache", "lmcache-mp"])
def test_only_chunks_that_match_the_start_of_the_prompt_are_loaded(
    steps: bool, connector: str
) -> None:
    pods = Pods(steps, connector)
    pods.complete(0, PROMPT)
    other = [*PROMPT[:30], *range(100, 114)]
    assert fetched_tokens(pods.complete(0, other)) == CHUNK_TOKENS


@pytest.mark.parametrize("tokens", [BLOCK_TOKENS - 1, BLOCK_TOKENS + 1, CHUNK_TOKENS + 1])
def test_prompts_with_different_salts_or_images_share_no_partial_chunk(tokens: int) -> None:
    store = ChunkStore(BLOCK_TOKENS, CHUNK_TOKENS, keeps_partial_chunks=True, role="kv_both")
    last = tokens // BLOCK_TOKENS * BLOCK_TOKENS
    every_keys = [
        ExtraKeys(BLOCK_TOKENS),
        ExtraKeys(BLOCK_TOKENS, salt="a"),
        ExtraKeys(BLOCK_TOKENS, salt="b"),
        ExtraKeys(BLOCK_TOKENS, placeholders=[Placeholder("image", last, 1)]),
    ]
    hasher = BlockHasher("sha256", BLOCK_TOKENS, "0", Random(0))
    ids = PROMPT[:tokens]
    partial_chunks = set()
    for keys in every_keys:
        extras = keys.hashed(0, tokens // BLOCK_TOKENS)
        prompt = Prompt(ids, keys, None, True, hasher.hashes(ids, extras))
        partial_chunks.add(store.keys(prompt)[-1])
        assert store.keys(prompt) == store.keys(prompt)
    assert len(partial_chunks) == len(every_keys)


@pytest.mark.parametrize(
    ("connector", "role", "is_loaded"),
    [
        ("lmcache", "kv_producer", False),
        ("lmcache", "kv_consumer", False),
        ("lmcache-mp", "kv_producer", True),
        ("lmcache-mp", "kv_consumer", True),
    ],
)
def test_only_the_older_lmcache_connector_obeys_its_kv_role(
    steps: bool, connector: str, role: str, is_loaded: bool
) -> None:
    pods = Pods(steps, connector, role)
    pods.complete(0, PROMPT)
    assert (fetched_tokens(pods.complete(0, PROMPT)) > 0) is is_loaded


def test_prompt_is_copied_to_the_receiver_named_in_the_request(steps: bool) -> None:
    pods = Pods(steps, "lmcache", "kv_producer", "kv_consumer")
    pods.complete(0, PROMPT, disagg_spec=SPEC)
    assert fetched_tokens(pods.complete(1, PROMPT)) == len(PROMPT) - 1


@pytest.mark.parametrize("missing", [*SPEC, "disagg_spec"])
def test_incomplete_lmcache_receiver_is_reported_in_one_line(
    steps: bool, missing: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec: object = {name: value for name, value in SPEC.items() if name != missing}
    if missing == "disagg_spec":
        spec = None
    pods = Pods(steps, "lmcache", "kv_producer", "kv_consumer")
    pods.complete(0, PROMPT, disagg_spec=spec)
    [line] = caplog.messages
    assert line.startswith(
        "incomplete kv_transfer_params in request r: disagg_spec requires req_id, receiver_host"
    )
    assert fetched_tokens(pods.complete(1, PROMPT)) == 0


def test_unreachable_receiver_does_not_delay_the_prefill(steps: bool) -> None:
    pods = Pods(steps, "lmcache", "kv_producer", "kv_consumer")
    pods.pods[1].channel.is_alive = False
    pods.complete(0, PROMPT, disagg_spec=SPEC)
    advance(pods.network, pods.pods, 2 * TIMEOUT_S)
    assert pods.pods[0].is_idle


def answered(pods: Pods, connector: str, **params: Any) -> object:
    """The `kv_transfer_params` of an answer."""
    answer = lmcache_answer(connector, params)
    pod = pods.pods[0]
    assert pod.cache is not None
    pod.cache.reset()
    pod.complete(PROMPT, params, answer)
    advance(pods.network, pods.pods, 0.5)
    return msgspec.to_builtins(answer)


def test_older_lmcache_connector_returns_the_first_token_on_request(steps: bool) -> None:
    pods = Pods(steps)
    assert answered(pods, "lmcache", ret_first_tok=True) == {"first_tok": 1}
    assert answered(pods, "lmcache", do_remote_decode=True) is None


def test_newer_lmcache_connector_returns_the_stored_token_count(
    steps: bool,
) -> None:
    pods = Pods(steps, "lmcache-mp")
    name = "num_lmcache_extra_cached_tokens"
    assert answered(pods, "lmcache-mp", **{name: True}) == {name: 0}
    assert answered(pods, "lmcache-mp", **{name: True}) == {name: 2 * CHUNK_TOKENS}
    assert answered(pods, "lmcache-mp", do_remote_decode=True) == {}


def test_nixl_transfer_parameters_are_ignored_by_the_lmcache_connector(steps: bool) -> None:
    pods = Pods(steps)
    request = pods.pods[0].decode_as(PROMPT, {"do_remote_prefill": True})
    advance(pods.network, pods.pods, 0.5)
    assert (request.end, fetched_tokens(request)) == ("length", 0)
    assert pods.pods[0].is_idle


def test_sender_copies_each_prompt_to_its_receiver(steps: bool) -> None:
    pods = Pods(steps, "lmcache", "kv_producer", "kv_consumer")
    pods.pods[0].engine.handoffs.parts[:] = [LMCacheDialect("pod:2")]
    pods.complete(0, PROMPT)
    assert fetched_tokens(pods.complete(1, PROMPT)) == len(PROMPT) - 1


def test_prompt_that_exceeds_one_lmcache_message_is_copied_in_parts(
    steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handoffs, "MAX_KEYS", 1)
    pods = Pods(steps, "lmcache", "kv_producer", "kv_consumer")
    pods.complete(0, PROMPT, disagg_spec=SPEC)
    assert fetched_tokens(pods.complete(1, PROMPT)) == len(PROMPT) - 1
