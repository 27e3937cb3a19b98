"""Prefill and decode pods over real ports: HTTP for the requests, ZMQ for the side channel."""

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import requests
import zmq
from msgspec import msgpack

from tests.client import Client, served
from tests.running_server import free_port
from tests.waits import wait_for_metric

PROMPT = list(range(100, 180))
"""Five of the eight blocks of a pod."""
OTHER = list(range(300, 380))
FLAGS = (
    *("--kv-connector", "nixl", "--kv-side-channel-host", "127.0.0.1"),
    *("--enable-kvcache", "--kv-cache-size", "9", "--max-model-len", "128"),
)
QUICK = ("--kv-lease-duration", "600ms", "--kv-side-channel-timeout", "500ms")
FAILED = {
    "message": "Internal server error",
    "type": "InternalServerError",
    "param": None,
    "code": 500,
}
USAGE = "vllm:kv_cache_usage_perc"
EXPIRED = "vllm:nixl_num_kv_expired_reqs_total"
FAILURES = "vllm:nixl_num_failed_transfers_total"
LATE = "vllm:nixl_num_notifications_after_expiry_total"
HITS = "vllm:external_prefix_cache_hits_total"
QUERIES = "vllm:external_prefix_cache_queries_total"


class Pods(NamedTuple):
    """A prefill pod, and a decode pod for each failure policy."""

    prefill: Client
    fail: Client
    recompute: Client


@contextmanager
def pod(*flags: str) -> Iterator[Client]:
    with served(*FLAGS, "--kv-side-channel-port", str(free_port()), *flags) as client:
        yield client


@pytest.fixture(scope="module")
def pods() -> Iterator[Pods]:
    with (
        pod() as prefill,
        pod("--kv-side-channel-timeout", "500ms") as fail,
        pod("--kv-side-channel-timeout", "500ms", "--kv-load-failure-policy", "recompute") as other,
    ):
        yield Pods(prefill, fail, other)


def prefilled(client: Client, prompt: list[int] = PROMPT) -> dict[str, Any]:
    """The parameters that a prefill returns."""
    answer = client.complete(prompt=prompt, kv_transfer_params={"do_remote_decode": True})
    assert answer["choices"][0]["finish_reason"] == "length"
    params: dict[str, Any] = answer["kv_transfer_params"]
    return params


def decode(
    client: Client, params: dict[str, Any], prompt: list[int] = PROMPT, **fields: Any
) -> requests.Response:
    body = {"prompt": prompt, "max_tokens": 3, "ignore_eos": True, "kv_transfer_params": params}
    return client.post("/v1/completions", {**body, **fields})


@pytest.mark.parametrize("stream", [False, True])
def test_decode_reads_and_releases_the_blocks_of_a_prefill(pods: Pods, stream: bool) -> None:
    hits = pods.fail.metric(HITS)
    failures = pods.fail.metric(FAILURES)
    prompt = list(range(400 + 100 * stream, 480 + 100 * stream))  # no other test caches it
    params = prefilled(pods.prefill, prompt)
    assert pods.prefill.metric(USAGE) == 5 / 8
    assert len(params["remote_block_ids"][0]) == 5
    answer = decode(pods.fail, params, prompt, stream=stream)
    assert answer.status_code == 200
    assert answer.text.count("error") == 0
    assert pods.prefill.metric(USAGE) == 0
    assert pods.fail.metric(HITS) - hits == len(prompt)
    assert pods.fail.metric(FAILURES) == failures
    assert pods.prefill.metric(LATE) == pods.prefill.metric(EXPIRED) == 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"remote_engine_id": "nonsense"},
        {"remote_request_id": "nonsense"},
        {"remote_host": "10.9.9.9"},
        {"remote_host": "no-such-host.invalid"},
        {"remote_port": 1},
        {"remote_port": "5600"},
        {"remote_block_ids": []},
        {"remote_host": ["127.0.0.1"]},
    ],
    ids=str,
)
def test_decode_of_unknown_blocks_follows_the_failure_policy(
    pods: Pods, wrong: dict[str, Any]
) -> None:
    right = prefilled(pods.prefill)
    params = {**right, **wrong}
    hits = pods.fail.metric(HITS) + pods.recompute.metric(HITS)
    failed = decode(pods.fail, params)
    stream = decode(pods.fail, params, stream=True)
    computed = decode(pods.recompute, params)
    assert (failed.status_code, failed.json()["error"]) == (500, FAILED)
    assert stream.status_code == 200
    assert [line for line in stream.text.splitlines() if line][-1] == "data: [DONE]"
    assert '"code":500' in stream.text and '"choices"' not in stream.text
    assert computed.json()["choices"][0]["finish_reason"] == "length"
    assert pods.fail.metric(HITS) + pods.recompute.metric(HITS) == hits
    for client in (pods.fail, pods.recompute):
        assert client.metric(USAGE) == 0
        assert client.metric("vllm:num_requests_waiting{") == 0
    # A good decode releases the blocks that the wrong ones left.
    assert decode(pods.fail, right).status_code == 200
    assert pods.prefill.metric(USAGE) == 0


def test_second_decode_of_a_prefill_follows_the_failure_policy(pods: Pods) -> None:
    params = prefilled(pods.prefill)
    assert decode(pods.fail, params).status_code == 200
    assert decode(pods.fail, params, OTHER).status_code == 500
    assert decode(pods.recompute, params).status_code == 200
    assert pods.prefill.metric(USAGE) == 0


def test_failed_block_load_is_counted_with_finish_reason_error(pods: Pods) -> None:
    name = "vllm:request_success_total"
    errors_before = pods.fail.metric(name, finished_reason="error")
    assert decode(pods.fail, {"do_remote_prefill": True}).status_code == 500
    assert pods.fail.metric(name, finished_reason="error") == errors_before + 1


def test_expired_lease_frees_the_blocks_and_fails_the_decode(pods: Pods) -> None:
    with pod(*QUICK) as prefill:
        params = prefilled(prefill)
        assert prefill.metric(USAGE) == 5 / 8
        wait_for_metric(prefill.server.port, EXPIRED, 1)
        assert prefill.metric(USAGE) == 0
        assert decode(pods.fail, params, OTHER).status_code == 500
        assert decode(pods.recompute, params).status_code == 200


def test_decode_after_a_prefill_pod_died_follows_the_failure_policy(
    pods: Pods,
) -> None:
    with pod() as prefill:
        params = prefilled(prefill)
        os.killpg(prefill.server.process.pid, signal.SIGKILL)
        assert decode(pods.fail, params).status_code == 500
        assert decode(pods.recompute, params).status_code == 200
    assert pods.fail.metric(USAGE) == pods.recompute.metric(USAGE) == 0


def test_waiting_prefill_completes_after_a_decode_reads_the_held_blocks(
    pods: Pods,
) -> None:
    first = prefilled(pods.prefill)
    second: list[dict[str, Any]] = []

    def prefill_second() -> None:
        second.append(prefilled(pods.prefill, OTHER))

    thread = threading.Thread(target=prefill_second)
    thread.start()
    wait_for_metric(pods.prefill.server.port, "vllm:num_requests_waiting", 1)
    assert not second
    assert decode(pods.fail, first).status_code == 200
    thread.join(20)
    assert decode(pods.fail, second[0], OTHER).status_code == 200
    assert pods.prefill.metric(USAGE) == 0


def test_client_disconnect_during_a_decode_frees_the_blocks_of_both_pods(
    pods: Pods,
) -> None:
    with pod("--kv-cache-transfer-latency", "1m") as slow:
        params = prefilled(pods.prefill)
        with pytest.raises(requests.ReadTimeout):
            slow.session.post(
                f"{slow.url}/v1/completions",
                json={"prompt": PROMPT, "kv_transfer_params": params},
                timeout=0.5,
            )
        wait_for_metric(slow.server.port, USAGE, 0)
        wait_for_metric(pods.prefill.server.port, USAGE, 0)
        assert pods.prefill.metric(EXPIRED) == 0
        assert slow.metric("vllm:num_requests_running") == 0


def test_each_data_parallel_rank_has_a_side_channel(pods: Pods) -> None:
    port = free_port(2)
    flags = ("--data-parallel-size", "2", "--data-parallel-mode", "internal")
    with served(*FLAGS, *flags, "--kv-side-channel-port", str(port)) as ranks:
        answers = []
        for rank in ("0", "1"):
            answer = ranks.post(
                "/v1/completions",
                {
                    "prompt": PROMPT,
                    "max_tokens": 1,
                    "kv_transfer_params": {"do_remote_decode": True},
                },
                headers={"X-data-parallel-rank": rank},
            )
            answers.append(answer.json()["kv_transfer_params"])
        assert [params["remote_port"] for params in answers] == [port, port + 1]
        assert [params["remote_engine_id"][-4:] for params in answers] == ["_dp0", "_dp1"]
        assert ranks.metric(USAGE, engine="1") == 5 / 8
        for params in answers:
            assert decode(pods.fail, params).status_code == 200
        assert ranks.metric(USAGE, engine="0") == ranks.metric(USAGE, engine="1") == 0


def test_occupied_side_channel_port_is_replaced_by_a_free_one(pods: Pods) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as occupied:
        taken = occupied.getsockname()[1]
        with served(*FLAGS, "--kv-side-channel-port", str(taken)) as prefill:
            params = prefilled(prefill)
            assert params["remote_port"] != taken
            assert f"port {taken}" in prefill.server.log()
            assert decode(pods.fail, params).status_code == 200


def test_side_channel_ignores_unknown_messages(pods: Pods) -> None:
    params = prefilled(pods.prefill)
    context = zmq.Context()
    with context.socket(zmq.DEALER) as peer:
        peer.linger = 0
        peer.connect(f"tcp://127.0.0.1:{params['remote_port']}")
        handshake = msgpack.encode((b"get_meta_msg", 0, 0))
        for body in (b"", b"\xff" * 100, handshake, msgpack.encode({"number": 1})):
            peer.send_multipart([b"", body])
            peer.send(body)
        read = {"type": "read", "request_id": "x", "reader": "y"}
        question = {"number": 7, "engine_id": "z", "message": read}
        peer.send_multipart([b"", msgpack.encode(question)])
        assert peer.poll(5000)
        answer = msgpack.decode(peer.recv_multipart()[-1])
    context.term()
    assert answer["number"] == 7 and answer["problem"]
    assert decode(pods.fail, params).status_code == 200
