"""NixlPushConnector: both pods get the request with the same id, in any order."""

from typing import Any, NamedTuple

import msgspec
import pytest

from app.core.protocol.common import KVTransferParams
from app.extensions.handoff.push import NixlPushDialect, push_params
from tests.extensions.handoff.pods import LEASE_S, TIMEOUT_S, Network, Pod, Request, advance

PROMPT = list(range(16))
"""Two of the nine blocks of a pod."""
KINDS = [
    pytest.param({"steps": False}, id="alone"),
    pytest.param({"steps": True}, id="steps"),
    pytest.param({"steps": True, "blocks": None}, id="counted"),
    pytest.param({"steps": False, "blocks": None}, id="no cache"),
]
REQUEST_ID = "cmpl-0f8e-0"


class Pair(NamedTuple):
    """A prefill pod and a decode pod."""

    network: Network
    prefill: Pod
    decode: Pod

    def advance(self, seconds: float) -> None:
        advance(self.network, [self.prefill, self.decode], seconds)

    def begin_prefill(self) -> Request:
        return self.prefill.prefill(PROMPT, request_id=REQUEST_ID)

    def begin_decode(self, **changes: object) -> Request:
        source: dict[str, object] = {
            "do_remote_prefill": True,
            "remote_engine_id": self.prefill.name,
            "remote_request_id": "0f8e",
            "remote_host": "pod",
            "remote_port": 1,
            "tp_size": 1,
            "pp_size": 1,
        }
        return self.decode.decode_as(PROMPT, source | changes, REQUEST_ID)


def pods(**fields: Any) -> Pair:
    network = Network()
    fields["dialect"] = NixlPushDialect()
    pair = Pair(network, Pod(network, 1, **fields), Pod(network, 2, **fields))
    pair.prefill.channel.open()
    return pair


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest) -> Pair:
    return pods(**request.param, prefill_s=0.2)


def assert_idle(pair: Pair) -> None:
    assert pair.prefill.is_idle
    assert pair.decode.is_idle


def test_early_decode_receives_the_blocks_after_the_prefill(
    pair: Pair,
) -> None:
    decode = pair.begin_decode()
    pair.advance(0.5)
    assert decode.end == ""
    prefill = pair.begin_prefill()
    pair.advance(0.5)
    assert (prefill.end, decode.end) == ("length", "length")
    assert decode.outcome is not None
    assert decode.outcome.fetched_tokens == len(PROMPT)
    assert_idle(pair)


def test_decode_receives_the_blocks_of_an_earlier_prefill(pair: Pair) -> None:
    pair.begin_prefill()
    pair.advance(0.5)
    decode = pair.begin_decode()
    pair.advance(0.5)
    assert decode.end == "length"
    assert pair.prefill.failures() == pair.decode.failures() == (0, 0, 0)
    assert_idle(pair)


def test_unclaimed_blocks_are_released_when_their_lease_expires(pair: Pair) -> None:
    pair.begin_prefill()
    pair.advance(LEASE_S)
    assert len(pair.prefill.engine.handoffs.leases) == 1
    pair.advance(0.5)
    assert pair.prefill.failures() == (0, 1, 0)
    assert_idle(pair)


@pytest.mark.parametrize(
    ("remote_request_id", "is_extended"),
    [(f"{REQUEST_ID}-0123abcd", True), ("0f8e", False), (None, False)],
)
def test_only_the_request_id_that_the_prefill_returned_extends_its_lease(
    remote_request_id: str | None, is_extended: bool
) -> None:
    pair = pods(blocks=9, steps=True)
    pair.begin_prefill()
    pair.advance(0.5)
    other = pair.decode.prefill(list(range(100, 164)), delay_s=20.0)
    pair.advance(0.5)
    decode = pair.begin_decode(remote_request_id=remote_request_id)
    pair.advance(LEASE_S)
    assert (len(pair.prefill.engine.handoffs.leases) == 1) is is_extended
    assert decode.end == other.end == ""


def test_decode_fails_when_its_prefill_is_aborted(pair: Pair) -> None:
    decode = pair.begin_decode()
    pair.advance(0.5)
    prefill = pair.begin_prefill()
    assert prefill.handle is not None
    prefill.handle.abort()
    pair.advance(0.5)
    assert decode.end == "error"
    assert pair.decode.failures() == (1, 0, 0)
    assert_idle(pair)


def test_prefill_whose_decode_was_aborted_frees_its_blocks(pair: Pair) -> None:
    decode = pair.begin_decode()
    pair.advance(0.5)
    assert decode.handle is not None
    decode.handle.abort()
    pair.advance(2 * TIMEOUT_S)
    pair.begin_prefill()
    pair.advance(0.5)
    assert_idle(pair)


@pytest.mark.parametrize(
    "wrong",
    [
        {"remote_engine_id": None},
        {"remote_engine_id": "another"},
        {"remote_host": None},
        {"remote_port": "1"},
        {"remote_port": 7},
        {"tp_size": None},
    ],
    ids=str,
)
def test_decode_with_invalid_transfer_parameters_fails(
    pair: Pair, wrong: dict[str, object]
) -> None:
    decode = pair.begin_decode(**wrong)
    pair.advance(2.5 * TIMEOUT_S)
    assert decode.end == "error"
    assert_idle(pair)


def test_prefill_response_has_the_fields_of_the_push_connector() -> None:
    pull = KVTransferParams(
        remote_block_ids=((1, 2),),
        remote_engine_id="e",
        remote_request_id="r",
        remote_host="pod",
        remote_port=5600,
        remote_num_tokens=20,
    )
    push = msgspec.to_builtins(push_params(pull))
    assert list(push) == [
        "do_remote_prefill",
        "do_remote_decode",
        "remote_block_ids",
        "remote_engine_id",
        "remote_request_id",
        "remote_host",
        "remote_port",
        "tp_size",
        "dcp_size",
        "pp_size",
        "remote_num_tokens",
        "transfer_mode",
    ]
    assert (push["transfer_mode"], push["remote_num_tokens"]) == ("push", 20)
