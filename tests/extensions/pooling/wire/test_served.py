"""Over HTTP:

texts take places, wait and are counted as prompts are; large answers; the openai SDK.
"""

from collections.abc import Iterator

import pytest

from tests.conformance.calls import ok, post, token_ids
from tests.conformance.clients import openai_client
from tests.extensions.pooling.calls import BASE, EMBED, FLAGS, POOL
from tests.hostile.raw_client import Wire, get, metric, running, waiting
from tests.running_server import RunningServer, running_server
from tests.waits import wait_for_metric

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
RUNNING = "vllm:num_requests_running"
WAITING = "vllm:num_requests_waiting"


@pytest.fixture(scope="module")
def every() -> Iterator[RunningServer]:
    """Serves all pooling routes, with a context of 64 tokens and vectors of 16 numbers."""
    with running_server("--task=pooling", *FLAGS) as server:
        yield server


@pytest.fixture(scope="module")
def narrow() -> Iterator[RunningServer]:
    """One place and one that waits; a text takes a long time."""
    slow = ("--max-num-seqs=1", "--max-waiting-queue-length=1", "--time-to-first-token=700ms")
    with running_server("--task=pooling", "--model=tiny", "--server-dev-mode", *slow) as server:
        yield server


def samples(server: RunningServer) -> dict[str, float]:
    """Name and value of every sample without labels of its own; of others the sums over them."""
    sums: dict[str, float] = {}
    for line in get(server.port, "/metrics").body.decode().splitlines():
        if line.startswith("vllm:"):
            name = line.partition("{")[0]
            sums[name] = sums.get(name, 0.0) + float(line.rpartition(" ")[2])
    return sums


def counted_by(server: RunningServer, path: str, *bodies: dict[str, object]) -> dict[str, float]:
    sums_before = samples(server)
    for body in bodies:
        assert post(server, path, body).status_code == 200
    return {name: value - sums_before.get(name, 0.0) for name, value in samples(server).items()}


def test_embedded_texts_are_counted_in_the_same_metrics_as_in_vllm(every: RunningServer) -> None:
    texts = ["hello", "hello world", "a third text"]
    tokens = sum(len(token_ids(every, text)) for text in texts)
    stopped = metric(every.port, "vllm:request_success_total", finished_reason="stop")
    computed = metric(every.port, "vllm:prompt_tokens_by_source_total", source="local_compute")
    bodies = [{"input": texts, "encoding_format": encoding} for encoding in ("float", "base64")]
    added = counted_by(every, EMBED, *bodies)
    assert {added[name + "_count"] for name in COUNTED_ONCE_A_TEXT} == {6}
    assert {added[name + "_count"] for name in NOT_COUNTED} == {0}
    assert (
        added["vllm:prompt_tokens_total"] == added["vllm:iteration_tokens_total_sum"] == 2 * tokens
    )
    assert added["vllm:request_prompt_tokens_sum"] == 2 * tokens
    assert added["vllm:generation_tokens_total"] == 0
    assert metric(every.port, "vllm:request_success_total", finished_reason="stop") == stopped + 6
    computed_after = metric(
        every.port, "vllm:prompt_tokens_by_source_total", source="local_compute"
    )
    assert computed_after == computed + 2 * tokens


def test_requests_above_the_queue_limit_are_rejected(narrow: RunningServer) -> None:
    with Wire(narrow.port) as first, Wire(narrow.port) as second:
        first.post(BASE[EMBED], EMBED)
        wait_for_metric(narrow.port, RUNNING, 1)
        second.post(BASE[POOL], POOL)
        wait_for_metric(narrow.port, WAITING, 1)
        assert post(narrow, EMBED, BASE[EMBED]).status_code == 429
        assert [wire.answer().status for wire in (first, second)] == [200, 200]
    assert (running(narrow.port), waiting(narrow.port)) == (0, 0)


def test_client_disconnect_frees_all_slots_of_the_request(narrow: RunningServer) -> None:
    with Wire(narrow.port) as wire:
        wire.post({"input": ["a", "b", "c", "d", "e"] * 20}, EMBED)
        wait_for_metric(narrow.port, WAITING, 1)
    wait_for_metric(narrow.port, RUNNING, 0)
    wait_for_metric(narrow.port, WAITING, 0)
    assert metric(narrow.port, "understudy_aborted_requests_total") >= 2
    assert post(narrow, EMBED, BASE[EMBED]).status_code == 200


def test_aborted_embedding_request_returns_503(narrow: RunningServer) -> None:
    with Wire(narrow.port) as wire:
        wire.post(BASE[EMBED], EMBED)
        wait_for_metric(narrow.port, RUNNING, 1)
        assert post(narrow, "/pause", {}).status_code == 200
        assert wire.answer().status == 503
    assert post(narrow, "/resume", {}).status_code == 200
    assert post(narrow, EMBED, BASE[EMBED]).status_code == 200


def vectors(server: RunningServer, texts: object, **fields: object) -> list[list[float]]:
    return [
        item["embedding"] for item in ok(post(server, EMBED, {"input": texts, **fields}))["data"]
    ]


def test_ten_thousand_embeddings_do_not_block_a_health_check(
    every: RunningServer,
) -> None:
    texts = [f"text number {number % 700}" for number in range(10_000)]
    with Wire(every.port) as wire:
        wire.post({"input": texts, "dimensions": 256}, EMBED)
        assert get(every.port, "/health").status == 200
        items = wire.answer().json()["data"]
    assert [item["index"] for item in items] == list(range(10_000))
    vectors_found = [item["embedding"] for item in items]
    assert (
        vectors_found[:700]
        == vectors_found[700:1400]
        == vectors(every, texts[:700], dimensions=256)
    )


def test_client_disconnect_during_a_large_response_affects_no_other_client(
    every: RunningServer,
) -> None:
    for _ in range(3):
        with Wire(every.port) as wire:
            wire.post({"input": ["a"] * 60, "dimensions": 65_536}, EMBED)
            assert wire.sock.recv(100)
            wire.reset()
    assert len(vectors(every, "a")) == 1


def test_openai_sdk_decodes_the_same_embeddings_from_base64_and_float(every: RunningServer) -> None:
    with openai_client(every, strict=False) as sdk:
        answer = sdk.embeddings.create(model="tiny", input=["hello", "world"])
        assert [item.embedding for item in answer.data] == vectors(every, ["hello", "world"])
        assert [item.index for item in answer.data] == [0, 1]
        assert answer.usage.prompt_tokens == sum(
            len(token_ids(every, text)) for text in ("hello", "world")
        )
        for encoding in ({}, {"encoding_format": "float"}):
            few = sdk.embeddings.create(model="tiny", input=[[1, 2, 3]], dimensions=5, **encoding)
            assert [few.data[0].embedding] == vectors(every, [[1, 2, 3]], dimensions=5)
