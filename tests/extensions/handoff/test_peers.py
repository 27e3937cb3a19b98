"""OffloadingConnector with a P2P tier: pods copy blocks of one another, and compute the rest."""

from typing import Any, NamedTuple

import pytest

from app.core.engine.kvcache.stores import ConnectorStore
from app.extensions.handoff import peers
from app.extensions.handoff.messages import Answer
from app.extensions.handoff.peers import PeerDialect
from tests.extensions.handoff.pods import (
    BLOCK_TOKENS,
    TIMEOUT_S,
    Network,
    Pod,
    Request,
    advance,
)

PROMPT = list(range(20))
"""Two whole blocks, and half of one."""
OTHER = list(range(100, 120))
KINDS = [
    pytest.param({"steps": False}, id="alone"),
    pytest.param({"steps": True}, id="steps"),
    pytest.param({"steps": True, "blocks": None}, id="counted"),
    pytest.param({"steps": False, "blocks": None}, id="no cache"),
]
CACHED_KINDS = KINDS[:2]
PREFILLED = {"remote_decoder": {"kv_request_id": "k"}}
PEER = {"kv_request_id": "k", "remote_host": "pod", "remote_port": 1}


class Pair(NamedTuple):
    """A prefill pod and a decode pod."""

    network: Network
    prefill: Pod
    decode: Pod

    def advance(self, seconds: float) -> None:
        advance(self.network, [self.prefill, self.decode], seconds)

    def begin_prefill(self, prompt: list[int] = PROMPT, **params: object) -> Request:
        return self.prefill.complete(prompt, params or PREFILLED)

    def begin_decode(self, role: str = "remote_prefiller", **changes: object) -> Request:
        return self.decode.complete(PROMPT, {role: PEER | changes})


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest) -> Pair:
    return pods(**request.param)


@pytest.fixture(params=CACHED_KINDS)
def cached_pair(request: pytest.FixtureRequest) -> Pair:
    return pods(**request.param)


def pods(**fields: Any) -> Pair:
    network = Network()
    prefill, decode = (
        Pod(
            network,
            port,
            **fields,
            prefill_s=0.2,
            dialect=PeerDialect(),
            store=ConnectorStore(BLOCK_TOKENS),
        )
        for port in (1, 2)
    )
    prefill.channel.open()
    return Pair(network, prefill, decode)


def fetched_tokens(request: Request) -> int:
    assert request.outcome is not None
    return request.outcome.fetched_tokens


def assert_idle(pair: Pair) -> None:
    assert pair.prefill.is_idle
    assert pair.decode.is_idle


@pytest.mark.parametrize("first", ["prefill", "decode"])
def test_decode_copies_the_full_blocks_of_its_prefill(pair: Pair, first: str) -> None:
    if first == "prefill":
        prefill = pair.begin_prefill()
        pair.advance(0.5)
        decode = pair.begin_decode()
    else:
        decode = pair.begin_decode()
        pair.advance(0.5)
        assert decode.end == ""
        prefill = pair.begin_prefill()
    pair.advance(0.5)
    assert (prefill.end, decode.end) == ("length", "length")
    assert fetched_tokens(decode) == 2 * BLOCK_TOKENS
    assert pair.decode.metric("external_prefix_cache_hits_total") == 2 * BLOCK_TOKENS
    assert_idle(pair)


def test_lease_of_a_prefill_occupies_no_kv_cache_blocks(cached_pair: Pair) -> None:
    cached_pair.begin_prefill()
    cached_pair.advance(0.5)
    assert len(cached_pair.prefill.engine.handoffs.leases) == 1
    assert cached_pair.prefill.held == 0
    cached_pair.advance(60.0)
    assert_idle(cached_pair)


def test_decode_without_a_prefill_computes_its_prompt_after_30_seconds(pair: Pair) -> None:
    decode = pair.begin_decode()
    pair.advance(29.0)
    assert decode.end == ""
    pair.advance(2 * TIMEOUT_S + 1.0)
    assert (decode.end, fetched_tokens(decode)) == ("length", 0)
    assert_idle(pair)


def test_decode_computes_its_prompt_when_the_prefill_is_aborted(pair: Pair) -> None:
    decode = pair.begin_decode()
    pair.advance(0.5)
    prefill = pair.begin_prefill()
    assert prefill.handle is not None
    prefill.handle.abort()
    pair.advance(0.5)
    assert (decode.end, fetched_tokens(decode)) == ("length", 0)
    assert_idle(pair)


@pytest.mark.parametrize("role", ["remote_prefiller", "remote_kv_source"])
def test_decode_computes_its_prompt_when_the_peer_is_unreachable(pair: Pair, role: str) -> None:
    pair.prefill.channel.is_alive = False
    decode = pair.begin_decode(role)
    pair.advance(2.5 * TIMEOUT_S)
    assert (decode.end, fetched_tokens(decode)) == ("length", 0)
    assert pair.decode.is_idle


def test_aborted_decode_frees_all_blocks_and_leases(pair: Pair) -> None:
    decode = pair.begin_decode()
    pair.advance(0.5)
    assert decode.handle is not None
    decode.handle.abort()
    pair.begin_prefill()
    pair.advance(1.0)
    assert_idle(pair)


@pytest.mark.parametrize("has_prompt", [True, False])
def test_remote_kv_source_request_copies_the_matching_blocks_of_the_peer(
    cached_pair: Pair, has_prompt: bool
) -> None:
    stored = [*PROMPT[:12], *OTHER] if has_prompt else OTHER
    cached_pair.begin_prefill(stored, unrelated=True)
    cached_pair.advance(0.5)
    decode = cached_pair.begin_decode("remote_kv_source")
    cached_pair.advance(0.5)
    assert decode.end == "length"
    assert fetched_tokens(decode) == BLOCK_TOKENS * has_prompt
    assert_idle(cached_pair)


def test_aborted_lookup_frees_all_blocks_and_leases(pair: Pair) -> None:
    decode = pair.begin_decode("remote_kv_source")
    assert decode.handle is not None
    decode.handle.abort()
    pair.advance(2 * TIMEOUT_S)
    assert_idle(pair)


def test_blocks_copied_from_a_peer_stay_in_the_store_of_the_decode_pod(cached_pair: Pair) -> None:
    cached_pair.begin_prefill()
    cached_pair.begin_decode()
    cached_pair.advance(1.0)
    assert cached_pair.decode.cache is not None
    cached_pair.decode.cache.reset()
    cached_pair.prefill.channel.is_alive = False
    repeated = cached_pair.decode.complete(PROMPT, {"remote_prefiller": PEER})
    cached_pair.advance(2.5 * TIMEOUT_S)
    assert (repeated.end, fetched_tokens(repeated)) == ("length", 2 * BLOCK_TOKENS)


@pytest.mark.parametrize(
    "params",
    [
        {"remote_prefiller": {}},
        {"remote_prefiller": 5},
        {"remote_prefiller": {**PEER, "kv_request_id": ""}},
        {"remote_prefiller": {**PEER, "kv_request_id": 7}},
        {"remote_kv_source": {**PEER, "remote_host": None}},
        {"remote_kv_source": {**PEER, "remote_port": 0}},
        {"remote_kv_source": {**PEER, "remote_port": "1" * 5000}},
        {"remote_decoder": {}},
        {"remote_decoder": None},
    ],
    ids=str,
)
def test_incomplete_transfer_parameters_are_reported_in_one_line(
    pair: Pair, params: dict[str, object], caplog: pytest.LogCaptureFixture
) -> None:
    request = pair.decode.complete(PROMPT, params)
    pair.advance(0.5)
    assert (request.end, fetched_tokens(request)) == ("length", 0)
    [line] = caplog.messages
    assert line.startswith("incomplete kv_transfer_params in request r: remote_")
    assert_idle(pair)


def test_nixl_transfer_parameters_are_ignored_by_the_p2p_tier(pair: Pair) -> None:
    request = pair.decode.decode_as(PROMPT, {"do_remote_prefill": True})
    pair.advance(0.5)
    assert (request.end, fetched_tokens(request)) == ("length", 0)
    assert_idle(pair)


def test_decode_computes_its_prompt_after_an_invalid_lookup_response(pair: Pair) -> None:
    decode = pair.begin_decode("remote_kv_source")
    pair.network.messages.clear()
    pair.decode.engine.handoffs.reads.answered(Answer(2, "1" * 5000))
    pair.advance(0.5)
    assert (decode.end, fetched_tokens(decode)) == ("length", 0)
    assert pair.decode.is_idle


def test_number_of_block_keys_in_a_lookup_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "MAX_KEYS", 1)
    pair = pods(steps=True)
    pair.begin_prefill(PROMPT, unrelated=True)
    pair.advance(0.5)
    decode = pair.begin_decode("remote_kv_source")
    pair.advance(0.5)
    assert fetched_tokens(decode) == BLOCK_TOKENS
