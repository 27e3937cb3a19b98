"""Decodes of MooncakeConnector, which may come before the prefill has ended."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from app.extensions.handoff.dialects import MooncakeDialect
from tests.extensions.handoff.pods import LEASE_S, TIMEOUT_S, Network, Pod, Request, advance

PROMPT = list(range(16))
"""Two of the nine blocks of a pod."""
PREFILL_S = 0.2
KINDS = [
    pytest.param({"steps": False}, id="alone"),
    pytest.param({"steps": True}, id="steps"),
    pytest.param({"steps": True, "blocks": None}, id="counted"),
    pytest.param({"steps": False, "blocks": None}, id="no cache"),
]
BOOTSTRAP = {"http://prefill:8998": ("pod", 1)}
"""Addresses of bootstrap servers, with the engine that each one knows."""


def find(url: str, engine_id: str, take: Callable[[str, int, str], None]) -> None:
    """Answers as the bootstrap server at `url`."""
    if url not in BOOTSTRAP:
        take("", 0, "connection refused")
        return
    host, port = BOOTSTRAP[url]
    take(host, port, "")


class Pair(NamedTuple):
    """A prefill pod and a decode pod."""

    network: Network
    prefill: Pod
    decode: Pod

    def advance(self, seconds: float) -> None:
        advance(self.network, [self.prefill, self.decode], seconds)

    def begin_prefill(self, transfer_id: str = "t1") -> Request:
        source: dict[str, object] = {"do_remote_decode": True, "transfer_id": transfer_id}
        return self.prefill.prefill_as(PROMPT, source)

    def begin_decode(self, **changes: object) -> Request:
        source: dict[str, object] = {
            "do_remote_prefill": True,
            "transfer_id": "t1",
            "remote_engine_id": self.prefill.name,
            "remote_bootstrap_addr": "http://prefill:8998",
        }
        return self.decode.decode_as(PROMPT, source | changes)


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest) -> Pair:
    fields: dict[str, Any] = {
        **request.param,
        "prefill_s": PREFILL_S,
        "dialect": MooncakeDialect(find),
    }
    network = Network()
    pair = Pair(network, Pod(network, 1, **fields), Pod(network, 2, **fields))
    pair.prefill.channel.open()
    return pair


def assert_idle(pair: Pair) -> None:
    assert pair.prefill.is_idle
    assert pair.decode.is_idle


def test_decode_that_arrives_before_its_prefill_waits_for_it(pair: Pair) -> None:
    decode = pair.begin_decode()
    pair.advance(0.5)
    assert decode.end == ""
    prefill = pair.begin_prefill()
    pair.advance(0.5)
    assert (prefill.end, decode.end) == ("length", "length")
    assert decode.outcome is not None
    assert decode.outcome.fetched_tokens == len(PROMPT)
    assert_idle(pair)


def test_mooncake_transfer_counts_as_an_external_hit(pair: Pair) -> None:
    pair.begin_prefill()
    pair.advance(0.5)
    pair.begin_decode()
    pair.advance(0.5)
    assert pair.decode.hits() == (0, len(PROMPT))
    [line] = [
        line
        for line in pair.decode.recorder.render().splitlines()
        if line.startswith("vllm:prompt_tokens_cached_by_source_total") and "p2p" in line
    ]
    assert line.endswith(f" {len(PROMPT)}.0")


def test_early_decode_waits_for_its_prefill_beyond_the_query_timeout(
    pair: Pair,
) -> None:
    decode = pair.begin_decode()
    pair.advance(3.5 * TIMEOUT_S)
    assert decode.end == ""
    pair.begin_prefill()
    pair.advance(0.5)
    assert decode.end == "length"
    assert_idle(pair)


def test_decode_after_a_prefill_reads_the_prefilled_blocks_at_once(
    pair: Pair,
) -> None:
    pair.begin_prefill()
    pair.advance(0.5)
    assert not pair.prefill.is_idle
    decode = pair.begin_decode()
    pair.advance(0.5)
    assert decode.end == "length"
    assert_idle(pair)


def test_decode_fails_when_its_prefill_is_aborted(pair: Pair) -> None:
    decode = pair.begin_decode()
    pair.advance(0.5)
    prefill = pair.begin_prefill()
    assert prefill.handle is not None
    prefill.handle.abort()
    pair.advance(0.5)
    assert decode.end == "error"
    assert_idle(pair)


def test_prefill_whose_decode_was_aborted_frees_its_blocks(pair: Pair) -> None:
    decode = pair.begin_decode()
    pair.advance(0.5)
    assert decode.handle is not None
    decode.handle.abort()
    pair.advance(2 * TIMEOUT_S)
    assert_idle(pair)
    pair.begin_prefill()
    pair.advance(0.5)
    assert_idle(pair)


def test_decode_fails_when_the_prefill_pod_is_gone(pair: Pair) -> None:
    decode = pair.begin_decode()
    pair.advance(0.5)
    pair.prefill.channel.is_alive = False
    pair.advance(2.5 * TIMEOUT_S)
    assert decode.end == "error"
    assert pair.decode.is_idle


@pytest.mark.parametrize(
    "wrong",
    [
        {"remote_bootstrap_addr": "http://nobody:8998"},
        {"remote_bootstrap_addr": None},
        {"remote_engine_id": 5},
        {"remote_engine_id": "another"},
        {"transfer_id": None},
    ],
    ids=str,
)
def test_decode_of_an_unknown_prefill_fails(pair: Pair, wrong: dict[str, object]) -> None:
    decode = pair.begin_decode(**wrong)
    pair.advance(0.5)
    assert decode.end == "error"
    assert_idle(pair)


def test_second_decode_of_a_transfer_fails_while_the_first_one_waits(pair: Pair) -> None:
    first = pair.begin_decode()
    pair.advance(0.5)
    second = pair.begin_decode()
    pair.advance(0.5)
    assert (first.end, second.end) == ("", "error")
    pair.begin_prefill()
    pair.advance(0.5)
    assert first.end == "length"
    assert_idle(pair)


def test_mooncake_prefill_without_a_transfer_id_holds_no_blocks(pair: Pair) -> None:
    prefill = pair.begin_prefill(transfer_id="")
    pair.advance(0.5)
    assert prefill.end == "length"
    assert_idle(pair)


def test_mooncake_prefill_holds_unread_blocks_for_eight_minutes(pair: Pair) -> None:
    pair.begin_prefill()
    pair.advance(LEASE_S + 1)
    assert len(pair.prefill.engine.handoffs.leases) == 1
    pair.advance(480 - LEASE_S)
    assert_idle(pair)
