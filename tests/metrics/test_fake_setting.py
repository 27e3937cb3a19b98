"""The setting `fake-metrics`: how it may be written, and what stops the start."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields
from prometheus_client.parser import text_string_to_metric_families

from config import ConfigError
from config.fake_metrics import FakeMetrics, FakeMetricsError, Function, parse
from config.loader import load
from tests.metrics.faked import Faked

YAML = """\
fake-metrics:
  running-requests: 16
  waiting-requests: oscillate:0:5:1s
  kv-cache-usage: 0.3
  request-success-total:
    stop: 20
  request-prompt-tokens: [ 10, 20, 30, 15 ]
  request-max-generation-tokens: [0, 0, 10, 20]
  totalprompttokens: 7
  total-generation-tokens: 8
  loras:
  - '{"running":"lora1,lora2","waiting":"lora3","timestamp":1257894567}'
  - {running: "lora1,lora3", timestamp: 1257894569.5}
  tpot-buckets-values: [0, 0, 10, 20, 30]
"""
FLAG = {
    "running-requests": 16,
    "waiting-requests": "oscillate:0:5:1000ms",
    "kv-cache-usage": 0.3,
    "request-success-total": {"stop": 20},
    "request-prompt-tokens": [10, 20, 30, 15],
    "request-max-generation-tokens": [0, 0, 10, 20],
    "total-prompt-tokens": 7,
    "total-generation-tokens": 8,
    "loras": [
        {"running": "lora1,lora2", "waiting": "lora3", "timestamp": 1257894567},
        {"running": "lora1,lora3", "waiting": "", "timestamp": 1257894569.5},
    ],
    "tpot-buckets-values": [0, 0, 10, 20, 30],
}


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "fakes.yaml"
    path.write_text(YAML, "utf-8")
    return str(path)


def fakes(argv: list[str], environ: dict[str, str] | None = None) -> FakeMetrics | None:
    return parse(load(argv, environ or {}).metrics.fake_metrics)


def test_yaml_flag_and_variable_say_the_same(file: str) -> None:
    text = json.dumps(FLAG)
    meant = fakes(["--fake-metrics", text])
    assert meant is not None and meant.waiting_requests == Function("oscillate", 0, 5, period_s=1)
    assert fakes(["--config", file]) == fakes([], {"SIM_FAKE_METRICS": text}) == meant


@pytest.mark.parametrize("argv", [[], ["--fake-metrics", "null"], ["--fake-metrics="]])
def test_without_it_the_metrics_are_true(argv: list[str]) -> None:
    assert fakes(argv) is None


WANTED = "Expected `float | object | null`"
LEVEL = "; a number, or a function such as ramp:0:10:30s (shape:start:end:period)"


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ([1], "fake-metrics must be a JSON object"),
        ({"runing-requests": 1}, "'runing-requests' is not a fake metric; did you mean running-requests?"),
        ({"running-requests": 1, "running_requests": 2}, "running-requests is given twice"),
        ({"running-requests": -1}, f"running-requests: Expected `float` >= 0.0{LEVEL}"),
        ({"waiting-requests": True}, f"waiting-requests: {WANTED}, got `bool`{LEVEL}"),
        ({"waiting-requests": "many"}, f"waiting-requests: {WANTED}, got `str`{LEVEL}"),
        ({"waiting-requests": float("nan")}, f"waiting-requests: Expected `float` >= 0.0{LEVEL}"),
        ({"running-requests": "ramp:0:10"}, f"running-requests: {WANTED}, got `str`{LEVEL}"),
        (
            {"running-requests": "sawtooth:0:10:5s"},
            f"running-requests.shape: Invalid enum value 'sawtooth'{LEVEL}",
        ),
        ({"running-requests": "ramp:-1:10:5s"}, "running-requests.start: Expected `float` >= 0.0"),
        ({"running-requests": "ramp:0:10:soon"}, "running-requests.period_s: Expected `float`, got `str`"),
        ({"running-requests": "ramp:0:10:0s"}, "running-requests.period_s: Expected `float` > 0.0"),
        ({"kv-cache-usage": 1.5}, f"kv-cache-usage: Expected `float` <= 1.0{LEVEL}"),
        ({"kv-cache-usage": "ramp:0:1.1:5s"}, "kv-cache-usage.end: Expected `float` <= 1.0"),
        ({"ttft-buckets-values": [0] * 24}, "ttft-buckets-values: Expected `array` of length <= 23"),
        ({"request-success-total": [1]}, "request-success-total: Expected `object | null`, got `array`"),
        ({"request-success-total": {"bored": 1}}, "request-success-total: Invalid enum value 'bored'"),
        ({"request-success-total": {"stop": -1}}, "request-success-total[...]: Expected `int` >= 0"),
        ({"total-generation-tokens": 2**63}, "total-generation-tokens: Expected `int` <= 9223372036854775"),
        ({"prefix-cache-hits": -1, "prefix-cache-queries": 2}, "prefix-cache-hits: Expected `int` >= 0"),
        ({"prefix-cache-hits": 1}, "prefix-cache-hits must be given together with prefix-cache-queries"),
        (
            {"prefix-cache-hits": 3, "prefix-cache-queries": 2},
            "prefix-cache-hits must not be more than prefix-cache-queries",
        ),
        ({"loras": ["lora1"]}, "loras[0]: Expected `object`, got `str`"),
        ({"loras": [{"runing": "a"}]}, "loras[0]: Object contains unknown field `runing`"),
        ({"loras": [{}, {"running": ["a"]}]}, "loras[1].running: Expected `str`, got `array`"),
        ({"loras": [{"timestamp": "noon"}]}, "loras[0].timestamp: Expected `float`, got `str`"),
    ],
)
def test_a_wrong_value_stops_the_start_and_names_its_key(keys: Any, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(["--fake-metrics", json.dumps(keys)], {})
    line = str(caught.value)
    assert line.startswith("setting fake-metrics: ") and "(flag --fake-metrics) is wrong: " in line
    assert complaint in line


def test_the_refresh_interval_is_longer_than_nothing() -> None:
    for text in ("0s", "-1s"):
        with pytest.raises(ConfigError, match="fake-metrics-refresh-interval: .* must be longer than 0s"):
            load([f"--fake-metrics-refresh-interval={text}"], {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from([field.encode_name for field in fields(FakeMetrics)])
LIKELY = JSON | st.lists(st.integers(0, 9), max_size=5) | st.sampled_from(["ramp:0:1:1s", "squarewave:1:0:1"])


@given(st.dictionaries(KEYS, LIKELY, max_size=6))
def test_any_object_is_refused_in_one_sentence_or_can_be_scraped(keys: dict[str, Any]) -> None:
    try:
        parse(json.dumps(keys))
    except FakeMetricsError as error:
        assert str(error) and "\n" not in str(error)
    else:
        families = text_string_to_metric_families(Faked(keys).scrape().decode())
        assert "vllm:cache_config_info" in {family.name for family in families}
