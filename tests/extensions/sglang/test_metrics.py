"""SGLang's metric families next to vLLM's."""

import re
from collections.abc import Iterator

import pytest

from tests.client import MODEL, Client, in_process

DIALECT = "--dialect=sglang"
SERVER = f'engine_type="unified",model_name="{MODEL}"'
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 5, "ignore_eos": True}


@pytest.fixture(name="client")
def _client() -> Iterator[Client]:
    with in_process(DIALECT) as client:
        yield client


def samples(client: Client, name: str) -> dict[str, float]:
    """Values of a family's series by their labels."""
    lines = re.findall(rf"^sglang:{name}(?:\{{(.*)\}})? (\S+)$", client.get("/metrics").text, re.M)
    return {labels: float(value) for labels, value in lines}


def test_sglang_metrics_are_off_by_default() -> None:
    with in_process() as client:
        assert "sglang:" not in client.get("/metrics").text


def test_requests_are_counted_by_streaming_mode(client: Client) -> None:
    client.post("/generate", {"text": "Hello", "sampling_params": {"max_new_tokens": 4}})
    client.post("/v1/chat/completions", CHAT)
    client.post("/v1/chat/completions", {**CHAT, "stream": True})
    whole = f'engine_type="unified",is_streaming="false",model_name="{MODEL}"'
    streamed = whole.replace("false", "true")
    assert samples(client, "num_requests_total") == {whole: 2, streamed: 1}
    assert samples(client, "generation_tokens_total")[streamed] == 5
    assert samples(client, "e2e_request_latency_seconds_count") == {whole: 2, streamed: 1}
    assert samples(client, "generation_tokens_histogram_count") == {SERVER: 3}
    assert "sglang:num_requests_created" not in client.get("/metrics").text


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("time_to_first_token_seconds", ["0.1", "0.2", "400.0", "+Inf"]),
        ("inter_token_latency_seconds", ["0.002", "0.004", "8.0", "+Inf"]),
        ("e2e_request_latency_seconds", ["0.1", "0.2", "2400.0", "+Inf"]),
        ("prompt_tokens_histogram", ["100.0", "300.0", "1.1e+06", "+Inf"]),
        ("queue_time_seconds", ["0.0", "0.001", "3000.0", "+Inf"]),
    ],
)
def test_histograms_have_the_buckets_of_sglang(
    client: Client, name: str, bounds: list[str]
) -> None:
    client.post("/v1/chat/completions", CHAT)
    keys = samples(client, f"{name}_bucket")
    bucket_bounds = [re.findall(r'le="([^"]*)"', key)[0] for key in keys]
    assert [*bucket_bounds[:2], *bucket_bounds[-2:]] == bounds


def test_aborted_requests_are_counted() -> None:
    with in_process(DIALECT, "--time-to-first-token=10m") as client:
        stream = client.app.test_client().post(
            "/v1/chat/completions", json={**CHAT, "stream": True}
        )
        gauges = samples(client, "num_running_reqs")
        assert list(gauges.values()) == [1]
        stream.close()
        assert samples(client, "num_aborted_requests_total") == {SERVER: 1}
        assert samples(client, "time_to_first_token_seconds_count") == {}


def test_cached_tokens_are_counted_as_device_tokens() -> None:
    with in_process(DIALECT, "--enable-kvcache") as client:
        for _ in range(2):
            client.post("/generate", {"input_ids": [1] * 40, "sampling_params": {"n": 1}})
        cached = f'cache_source="device",{SERVER}'
        assert samples(client, "cached_tokens_total") == {cached: 32}
        assert samples(client, "uncached_prompt_tokens_histogram_sum") == {SERVER: 48}
        assert list(samples(client, "cache_hit_rate").values()) == [32 / 80]


def test_gauges_have_the_scheduler_labels_of_sglang() -> None:
    with in_process(DIALECT) as client:
        [labels] = samples(client, "max_total_num_tokens")
        assert labels == (
            f'engine_type="unified",model_name="{MODEL}",moe_ep_rank="0",pp_rank="0",tp_rank="0"'
        )


def test_health_checks_are_not_counted(client: Client) -> None:
    client.get("/health_generate")
    assert samples(client, "num_requests_total") == {}


def test_disabled_statistics_remove_the_sglang_metrics() -> None:
    with in_process(DIALECT, "--disable-log-stats") as client:
        assert "sglang:" not in client.get("/metrics").text
