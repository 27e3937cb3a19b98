"""Texts that are pooled take places, wait in the queue, take their time and are counted, as prompts are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conformance.calls import post, token_ids
from tests.hostile.raw_client import Wire, get, metric, running, wait_until, waiting
from tests.pooling.calls import BASE, EMBED, POOL, RERANK
from tests.running_server import RunningServer, running_server

COUNTED_ONCE_A_TEXT = (
    "vllm:time_to_first_token_seconds",
    "vllm:e2e_request_latency_seconds",
    "vllm:request_queue_time_seconds",
    "vllm:request_prefill_time_seconds",
    "vllm:request_decode_time_seconds",
    "vllm:request_inference_time_seconds",
    "vllm:request_time_per_output_token_seconds",
    "vllm:request_prompt_tokens",
    "vllm:request_generation_tokens",
    "vllm:request_max_num_generation_tokens",
    "vllm:request_prefill_kv_computed_tokens",
    "vllm:request_params_n",
)
NOT_COUNTED = ("vllm:inter_token_latency_seconds", "vllm:request_params_max_tokens")


@pytest.fixture(scope="module")
def narrow() -> Iterator[RunningServer]:
    """One place and one that waits; a text takes a long time."""
    slow = ("--max-num-seqs=1", "--max-waiting-queue-length=1", "--time-to-first-token=700ms")
    with running_server("--task=pooling", "--model=tiny", "--server-dev-mode", *slow) as server:
        yield server


def samples(server: RunningServer) -> dict[str, float]:
    """Name and value of every sample without labels of its own; of others the sums over them."""
    found: dict[str, float] = {}
    for line in get(server.port, "/metrics").body.decode().splitlines():
        if line.startswith("vllm:"):
            name = line.partition("{")[0]
            found[name] = found.get(name, 0.0) + float(line.rpartition(" ")[2])
    return found


def counted_by(server: RunningServer, path: str, *bodies: dict[str, object]) -> dict[str, float]:
    """What requests add to every sample."""
    before = samples(server)
    for body in bodies:
        assert post(server, path, body).status_code == 200
    return {name: value - before.get(name, 0.0) for name, value in samples(server).items()}


def test_texts_are_counted_in_every_family_that_vllm_counts_them_in(every: RunningServer) -> None:
    texts = ["hello", "hello world", "a third text"]
    tokens = sum(len(token_ids(every, text)) for text in texts)
    stopped = metric(every.port, "vllm:request_success_total", finished_reason="stop")
    computed = metric(every.port, "vllm:prompt_tokens_by_source_total", source="local_compute")
    bodies = [{"input": texts, "encoding_format": encoding} for encoding in ("float", "base64")]
    added = counted_by(every, EMBED, *bodies)
    assert {added[name + "_count"] for name in COUNTED_ONCE_A_TEXT} == {6}
    assert {added[name + "_count"] for name in NOT_COUNTED} == {0}
    assert added["vllm:prompt_tokens_total"] == added["vllm:iteration_tokens_total_sum"] == 2 * tokens
    assert added["vllm:request_prompt_tokens_sum"] == 2 * tokens
    assert added["vllm:generation_tokens_total"] == 0
    assert metric(every.port, "vllm:request_success_total", finished_reason="stop") == stopped + 6
    found = metric(every.port, "vllm:prompt_tokens_by_source_total", source="local_compute")
    assert found == computed + 2 * tokens


def test_a_cross_encoder_takes_a_place_for_each_pair(cross: RunningServer) -> None:
    added = counted_by(cross, RERANK, {"query": "a", "documents": ["b", "c", "d"]})
    assert added["vllm:request_prompt_tokens_count"] == 3


def test_one_runs_one_waits_and_a_third_is_refused(narrow: RunningServer) -> None:
    with Wire(narrow.port) as first, Wire(narrow.port) as second:
        first.post(BASE[EMBED], EMBED)
        wait_until(lambda: running(narrow.port) == 1)
        second.post(BASE[POOL], POOL)
        wait_until(lambda: waiting(narrow.port) == 1)
        assert post(narrow, EMBED, BASE[EMBED]).status_code == 429
        assert [wire.answer().status for wire in (first, second)] == [200, 200]
    assert (running(narrow.port), waiting(narrow.port)) == (0, 0)


def test_a_client_that_leaves_gives_its_places_back(narrow: RunningServer) -> None:
    with Wire(narrow.port) as wire:
        wire.post({"input": ["a", "b", "c", "d", "e"] * 20}, EMBED)
        wait_until(lambda: waiting(narrow.port) == 1)
    wait_until(lambda: (running(narrow.port), waiting(narrow.port)) == (0, 0))
    assert metric(narrow.port, "understudy_aborted_requests_total") >= 2
    assert post(narrow, EMBED, BASE[EMBED]).status_code == 200
