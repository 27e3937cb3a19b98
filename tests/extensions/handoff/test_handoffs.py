"""A prefill on one engine and its decode on another one."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.extensions.handoff.pods import LEASE_S, TIMEOUT_S, Network, Pod, Request, advance

PROMPT = list(range(40))
"""Five blocks."""
OTHER = list(range(100, 140))
CACHED_KINDS = [
    pytest.param({"steps": False}, id="alone"),
    pytest.param({"steps": True}, id="steps"),
]
KINDS = [
    *CACHED_KINDS,
    pytest.param({"steps": True, "blocks": None}, id="counted"),
    pytest.param({"steps": False, "blocks": None}, id="no cache"),
]
Start = Callable[..., tuple[Network, Pod, Pod]]


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture
def start(kind: dict[str, Any]) -> Start:
    """Starts a prefill and a decode pod."""

    def pods(**options: Any) -> tuple[Network, Pod, Pod]:
        network = Network()
        fields = {**kind, **options}
        return network, Pod(network, 1, **fields), Pod(network, 2, **fields)

    return pods


def prefilled(network: Network, prefill: Pod, decode: Pod) -> Request:
    request = prefill.prefill(PROMPT)
    advance(network, [prefill, decode], 0.5)
    assert request.end == "length"
    return request


def test_prefill_blocks_are_held_until_they_are_read(start: Start, kind: dict[str, Any]) -> None:
    network, prefill, decode = start(transfer_s=1.0)
    request = prefilled(network, prefill, decode)
    held = prefill.held
    answer = decode.decode(request)
    advance(network, [prefill, decode], 0.5)
    assert (answer.end, prefill.held) == ("", held)
    advance(network, [prefill, decode], 2.0)
    assert answer.end == "length"
    assert decode.hits() == (1, len(PROMPT))
    assert prefill.is_idle and decode.is_idle
    assert prefill.failures() == decode.failures() == (0, 0, 0)
    if "blocks" not in kind:
        assert held == 5


def test_decode_fails_after_the_lease_of_its_blocks_has_expired(start: Start) -> None:
    network, prefill, decode = start()
    request = prefilled(network, prefill, decode)
    advance(network, [prefill, decode], LEASE_S - 1)
    assert len(prefill.engine.handoffs.leases) == 1
    advance(network, [prefill, decode], 1)
    assert prefill.is_idle
    assert prefill.failures() == (0, 1, 0)
    answer = decode.decode(request)
    advance(network, [prefill, decode], 1)
    assert answer.end == "error"
    assert decode.failures() == (1, 0, 0)
    assert decode.hits() == (0, 0)
    assert decode.is_idle


def test_second_read_of_the_blocks_of_a_prefill_fails(start: Start) -> None:
    network, prefill, decode = start(transfer_s=1.0)
    other = Pod(network, 3)
    pods = [prefill, decode, other]
    request = prefilled(network, prefill, decode)
    other.clock.advance(prefill.clock.now() - other.clock.now())
    answers = [decode.decode(request), other.decode(request)]
    advance(network, pods, 3)
    assert sorted([answer.end for answer in answers]) == ["error", "length"]
    late = other.decode(request)
    advance(network, pods, 3)
    assert late.end == "error"
    assert all(pod.is_idle for pod in pods)


@pytest.mark.parametrize(
    "changes",
    [
        {"remote_engine_id": "nonsense"},
        {"remote_request_id": "nonsense"},
        {"remote_block_ids": None},
        {"remote_host": None},
        {"remote_host": "a b"},
        {"remote_port": "5600"},
        {"remote_port": 0},
        {"remote_port": True},
        {"remote_engine_id": 7},
        {"remote_engine_id": "x" * 5000},
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_invalid_transfer_parameters_follow_the_failure_policy(
    start: Start, policy: str, changes: dict[str, Any]
) -> None:
    network, prefill, decode = start(policy=policy)
    request = prefilled(network, prefill, decode)
    answer = decode.decode(request, **changes)
    advance(network, [prefill, decode], 1)
    assert answer.end == ("length" if policy == "recompute" else "error")
    assert decode.hits() == (0, 0)
    assert decode.failures()[0] == 1
    assert decode.is_idle
    advance(network, [prefill, decode], LEASE_S)
    assert prefill.is_idle


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_dead_prefill_pod_is_detected_after_the_timeout(start: Start, policy: str) -> None:
    network, prefill, decode = start(policy=policy)
    request = prefilled(network, prefill, decode)
    prefill.channel.is_alive = False
    answer = decode.decode(request)
    advance(network, [decode], TIMEOUT_S - 0.2)
    assert answer.end == ""
    advance(network, [decode], 1)
    assert answer.end == ("length" if policy == "recompute" else "error")
    assert decode.is_idle


def test_prefill_pod_that_dies_during_the_transfer_is_detected(start: Start) -> None:
    network, prefill, decode = start(transfer_s=1.0)
    request = prefilled(network, prefill, decode)
    answer = decode.decode(request)
    advance(network, [prefill, decode], 0.5)
    prefill.channel.is_alive = False
    advance(network, [decode], 3)
    assert answer.end == "error"
    assert decode.is_idle


def test_lease_shorter_than_the_transfer_is_extended(start: Start) -> None:
    network, prefill, decode = start(transfer_s=4 * LEASE_S)
    request = prefilled(network, prefill, decode)
    answer = decode.decode(request)
    advance(network, [prefill, decode], 5 * LEASE_S)
    assert answer.end == "length"
    assert prefill.failures() == (0, 0, 0)


def test_lease_lost_during_the_transfer_fails_the_read(start: Start) -> None:
    network, prefill, decode = start(transfer_s=2 * LEASE_S)
    request = prefilled(network, prefill, decode)
    answer = decode.decode(request)
    advance(network, [prefill, decode], 0.5)
    advance(network, [prefill], 2 * LEASE_S)  # the decode pod hangs
    assert prefill.is_idle
    advance(network, [decode], 3 * LEASE_S)
    assert answer.end == "error"
    assert prefill.failures() == (0, 1, 1)


@pytest.mark.parametrize("moment_s", [0.0, 0.5])
def test_aborted_decode_releases_the_blocks_of_its_prefill(start: Start, moment_s: float) -> None:
    network, prefill, decode = start(transfer_s=1.0)
    request = prefilled(network, prefill, decode)
    answer = decode.decode(request)
    advance(network, [prefill, decode], moment_s)
    assert answer.handle is not None
    answer.handle.abort()
    advance(network, [prefill, decode], 0.5)
    assert prefill.is_idle and decode.is_idle
    assert prefill.failures() == (0, 0, 0)


@pytest.mark.parametrize("kind", CACHED_KINDS)
def test_decode_that_waits_for_free_blocks_keeps_the_lease_of_its_prefill(
    kind: dict[str, Any],
) -> None:
    network = Network()
    prefill = Pod(network, 1, **kind)
    decode = Pod(network, 2, **kind)
    pods = [prefill, decode]
    blocking = decode.prefill(OTHER)  # holds five of eight blocks, which another lease keeps
    request = prefilled(network, prefill, decode)
    assert blocking.end == "length"
    answer = decode.decode(request)
    advance(network, pods, LEASE_S - 1)
    assert answer.end == ""
    advance(network, pods, 2)
    assert answer.end == "length"
    assert prefill.failures() == (0, 0, 0)


@pytest.mark.parametrize("kind", CACHED_KINDS)
def test_full_prefill_pod_makes_later_prefills_wait(kind: dict[str, Any]) -> None:
    network = Network()
    prefill = Pod(network, 1, **kind)
    decode = Pod(network, 2, **kind)
    first = prefilled(network, prefill, decode)
    second = prefill.prefill(OTHER)
    advance(network, [prefill, decode], 1)
    assert second.end == ""
    assert prefill.recorder.read_load()[1] == 1
    decode.decode(first)
    advance(network, [prefill, decode], 1)
    assert second.end == "length"


@pytest.mark.parametrize("moment_s", [0.0, 0.5])
def test_aborted_prefill_frees_its_blocks(start: Start, moment_s: float) -> None:
    network, prefill, _ = start()
    request = prefill.prefill(PROMPT, delay_s=1.0)
    advance(network, [prefill], moment_s)
    assert request.handle is not None
    request.handle.abort()
    assert prefill.is_idle
    advance(network, [prefill], 0.1)
    assert prefill.is_idle


@pytest.mark.parametrize("policy", ["fail", "recompute"])
def test_decode_on_the_prefill_pod_transfers_no_blocks(start: Start, policy: str) -> None:
    network, prefill, _ = start(policy=policy)
    request = prefilled(network, prefill, prefill)
    answer = prefill.decode(request)
    advance(network, [prefill], 1)
    assert answer.end == "length"
    assert prefill.hits() == (0, 0)
    assert prefill.is_idle
    second_answer = prefill.decode(request)
    advance(network, [prefill], 1)
    assert second_answer.end == ("length" if policy == "recompute" else "error")
    assert prefill.is_idle


def test_recomputed_prompt_of_a_failed_transfer_does_not_count_as_cached(start: Start) -> None:
    network, prefill, decode = start(policy="recompute")
    request = prefilled(network, prefill, decode)
    decode.decode(request, remote_engine_id="nonsense")
    advance(network, [prefill, decode], 1)
    assert decode.metric("external_prefix_cache_queries_total") == len(PROMPT)
    assert decode.metric("external_prefix_cache_hits_total") == 0
    assert decode.recorder.figures().cached == 0


@pytest.mark.parametrize("kind", CACHED_KINDS)
def test_cache_reset_waits_for_held_blocks(kind: dict[str, Any]) -> None:
    network = Network()
    prefill = Pod(network, 1, **kind)
    prefill.prefill(PROMPT)
    advance(network, [prefill], 0.5)
    assert prefill.cache is not None
    assert not prefill.cache.reset()
    prefill.cache.discard()
    advance(network, [prefill], LEASE_S)
    assert prefill.is_idle
    assert prefill.cache.reset()
