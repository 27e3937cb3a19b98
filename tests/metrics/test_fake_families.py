"""With fake metrics, a scrape tells the families that are named, in vLLM's form, and nothing else of vLLM."""

from typing import Any

import pytest

from app.base.metrics.fake import HISTOGRAMS, value_at
from config.fake_metrics import Function
from tests.metrics.faked import Faked

ALWAYS = {"cache_config_info", "lora_requests_info"}
SERVER = 'engine="0",model_name="tiny"'


@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        ({"running-requests": 10}, ["vllm:num_requests_running{%s} 10.0"]),
        ({"kv-cache-usage": 0.4}, ["vllm:kv_cache_usage_perc{%s} 0.4", "vllm:gpu_cache_usage_perc{%s} 0.4"]),
        ({"total-generation-tokens": 1500000}, ["vllm:generation_tokens_total{%s} 1.5e+06"]),
        (
            {"prefix-cache-hits": 750, "prefix-cache-queries": 2000},
            ["vllm:prefix_cache_hits_total{%s} 750.0", "vllm:prefix_cache_queries_total{%s} 2000.0"],
        ),
    ],
)
def test_a_number_is_told_as_it_is(keys: dict[str, Any], lines: list[str]) -> None:
    told = Faked(keys).lines()
    assert [line % SERVER for line in lines] == [line % SERVER for line in lines if line % SERVER in told]


def test_each_finish_reason_of_vllm_is_there_and_others_when_they_are_named() -> None:
    samples = Faked({"request-success-total": {"stop": 20, "tool_calls": 3}}).samples("request_success_total")
    assert samples == [
        'request_success_total{finished_reason="stop"} 20.0',
        'request_success_total{finished_reason="length"} 0.0',
        'request_success_total{finished_reason="abort"} 0.0',
        'request_success_total{finished_reason="error"} 0.0',
        'request_success_total{finished_reason="repetition"} 0.0',
        'request_success_total{finished_reason="tool_calls"} 3.0',
    ]


def test_counts_are_observations_of_the_upper_bound_of_their_bucket() -> None:
    faked = Faked({"ttft-buckets-values": [1, 2, 3]})
    assert faked.samples("time_to_first_token_seconds_bucket")[:4] == [
        'time_to_first_token_seconds_bucket{le="0.001"} 1.0',
        'time_to_first_token_seconds_bucket{le="0.005"} 3.0',
        'time_to_first_token_seconds_bucket{le="0.01"} 6.0',
        'time_to_first_token_seconds_bucket{le="0.02"} 6.0',
    ]
    assert faked.samples("time_to_first_token_seconds_bucket")[-1].endswith('{le="+Inf"} 6.0')
    assert faked.value("time_to_first_token_seconds_count") == 6
    assert faked.value("time_to_first_token_seconds_sum") == pytest.approx(0.001 + 2 * 0.005 + 3 * 0.01)


@pytest.mark.parametrize(("key", "family"), HISTOGRAMS.items())
def test_every_list_of_counts_has_its_family(key: str, family: str) -> None:
    faked = Faked({key.replace("_", "-"): [0, 1, 2]})
    name = family.removeprefix("vllm:")
    cumulative = [float(sample.split()[-1]) for sample in faked.samples(f"{name}_bucket")]
    assert cumulative[:4] == [0, 1, 3, 3] and cumulative[-1] == 3
    others = {
        "inter_token_latency_seconds": {"time_per_output_token_seconds"},
        "request_max_num_generation_tokens": {"max_num_generation_tokens"},
        "request_prompt_tokens": {"prompt_tokens_total"},
        "request_generation_tokens": {"generation_tokens_total"},
    }
    assert faked.names() == {name} | others.get(name, set()) | ALWAYS


def test_the_families_of_the_process_and_of_http_stay_true() -> None:
    text = Faked({}).scrape().decode()
    assert "process_open_fds" in text and "http_request_duration_highr_seconds_count" in text


@pytest.mark.parametrize(
    ("shape", "values"),
    [
        ("oscillate", (6, 10, 6, 2, 6, 10, 6, 2, 6)),
        ("ramp", (2, 4, 6, 8, 10, 10, 10, 10, 10)),
        ("rampreset", (2, 4, 6, 8, 2, 4, 6, 8, 2)),
        ("squarewave", (2, 2, 10, 10, 2, 2, 10, 10, 2)),
    ],
)
def test_two_periods_in_quarters(shape: Any, values: tuple[float, ...]) -> None:
    function = Function(shape, start=2.0, end=10.0, period_s=4)
    assert [value_at(function, at_s, 1) for at_s in range(9)] == pytest.approx(values)


def test_requests_are_whole_and_the_usage_is_not() -> None:
    faked = Faked(
        {
            "running-requests": "oscillate:0:5:4s",
            "waiting-requests": "ramp:0:10:4s",
            "kv-cache-usage": "ramp:0:1:8s",
        }
    )
    told = []
    for _ in range(6):
        told.append(
            tuple(map(faked.value, ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")))
        )
        faked.clock.advance(1)
    assert told == [(2, 0, 0), (5, 2, 0.125), (2, 5, 0.25), (0, 7, 0.375), (2, 10, 0.5), (5, 10, 0.625)]


def test_a_value_changes_only_with_the_refresh_interval() -> None:
    faked = Faked({"running-requests": "ramp:0:100:100s"}, "--fake-metrics-refresh-interval", "10s")
    told = []
    for _ in range(5):
        told.append(faked.value("num_requests_running"))
        faked.clock.advance(6)
    assert told == [0, 0, 10, 10, 20]


def test_a_function_starts_when_it_is_set() -> None:
    faked = Faked({"running-requests": "ramp:0:10:10s", "waiting-requests": 3})
    faked.clock.advance(5)
    faked.update(waiting_requests="ramp:0:10:10s")
    faked.clock.advance(2)
    assert (faked.value("num_requests_running"), faked.value("num_requests_waiting")) == (7, 2)
    faked.update(running_requests="ramp:10:0:10s")
    assert (faked.value("num_requests_running"), faked.value("num_requests_waiting")) == (10, 2)
