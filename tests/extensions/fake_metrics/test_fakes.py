"""The setting `fake-metrics`:

how it is written, what a scrape then tells, and how it changes in parts.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields
from prometheus_client.parser import text_string_to_metric_families

from app.core.base.metrics.instruments import Exposition
from app.core.base.metrics.recorder import Recorder
from app.core.server.http.body_limits import BodyLimits
from app.core.server.middleware.http_metrics import HttpMetrics
from app.core.settings import load
from app.extensions.fake_metrics.document import (
    FakeMetrics,
    FakeMetricsError,
    Function,
    merged,
    parse,
)
from app.extensions.fake_metrics.families import HISTOGRAMS, FakeFamilies, value_at
from app.extensions.fake_metrics.routes import fake_metrics_routes
from app.extensions.fake_metrics.settings import FakeMetricsSettings
from app.shared.virtual_clock import VirtualClock
from config import ConfigError
from config.validation import LiveSettings
from tests.application import app_of, application

START = 1_700_000_000.0
"""Unix time at which the clock of a test starts."""


class Faked:
    """`keys` are the fake metrics of the start; None starts without."""

    def __init__(self, keys: dict[str, Any] | None, *flags: str) -> None:
        flags_of_keys = [] if keys is None else ["--fake-metrics", json.dumps(keys)]
        self.clock = VirtualClock()
        self.live = LiveSettings(load([*flags_of_keys, *flags], {}))
        self.recorder = Recorder("tiny", 1024, {})
        fakes = FakeFamilies(
            {"model_name": "tiny", "engine": "0"}, 1024, {}, 2, clock=self.clock.now, now=self._now
        )
        self.live.subscribe(fakes.on_settings)
        http = HttpMetrics()
        families = [lambda: (fakes if fakes.active else self.recorder).render(), http.text]
        self._exposition = Exposition(families, http.process_text, self.clock.now)

    def _now(self) -> float:
        return START + self.clock.now()

    def update(self, **keys: Any) -> None:
        """What /admin/config does; keys with underscores."""
        text = merged(self.live.current.section(FakeMetricsSettings).fake_metrics, keys)
        self.live.change({"fake-metrics": text})

    def scrape(self) -> bytes:
        return self._exposition.render()

    def lines(self) -> list[str]:
        """All lines of `vllm:` families."""
        return [line for line in self.scrape().decode().splitlines() if "vllm:" in line]

    def names(self) -> set[str]:
        """The `vllm:` families that are there, but for creation times."""
        heads = re.findall(r"^# TYPE vllm:(\S+) ", self.scrape().decode(), re.MULTILINE)
        return {name for name in heads if not name.endswith("_created")}

    def samples(self, name: str) -> list[str]:
        """The sample lines of one name, without `vllm:` and the server's labels."""
        matches = (
            line.removeprefix("vllm:")
            for line in self.lines()
            if re.match(rf"vllm:{name}[{{ ]", line)
        )
        return [
            re.sub(r'engine="0",|model_name="tiny",?|,(?=})', "", line)
            .replace("{}", "")
            .replace(",}", "}")
            for line in matches
        ]

    def value(self, name: str) -> float:
        (sample,) = self.samples(name)
        return float(sample.split()[-1])


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
    return parse(load(argv, environ or {}).section(FakeMetricsSettings).fake_metrics)


def test_config_file_flag_and_variable_give_the_same_fake_metrics(file: str) -> None:
    text = json.dumps(FLAG)
    meant = fakes(["--fake-metrics", text])
    assert meant is not None and meant.waiting_requests == Function("oscillate", 0, 5, period_s=1)
    assert fakes(["--config", file]) == fakes([], {"SIM_FAKE_METRICS": text}) == meant


@pytest.mark.parametrize("argv", [[], ["--fake-metrics", "null"], ["--fake-metrics="]])
def test_metrics_are_real_if_fake_metrics_are_unset_null_or_empty(argv: list[str]) -> None:
    assert fakes(argv) is None


WANTED = "Expected `float | object | null`"
LEVEL = "; a number, or a function such as ramp:0:10:30s (shape:start:end:period)"


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ([1], "fake-metrics must be a JSON object"),
        (
            {"runing-requests": 1},
            "'runing-requests' is not the name of a fake metric; did you mean running-requests?",
        ),
        ({"running-requests": 1, "running_requests": 2}, "running-requests is specified twice"),
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
        (
            {"running-requests": "ramp:0:10:soon"},
            "running-requests.period_s: Expected `float`, got `str`",
        ),
        ({"running-requests": "ramp:0:10:0s"}, "running-requests.period_s: Expected `float` > 0.0"),
        ({"kv-cache-usage": 1.5}, f"kv-cache-usage: Expected `float` <= 1.0{LEVEL}"),
        ({"kv-cache-usage": "ramp:0:1.1:5s"}, "kv-cache-usage.end: Expected `float` <= 1.0"),
        (
            {"ttft-buckets-values": [0] * 24},
            "ttft-buckets-values: Expected `array` of length <= 23",
        ),
        (
            {"request-success-total": [1]},
            "request-success-total: Expected `object | null`, got `array`",
        ),
        (
            {"request-success-total": {"bored": 1}},
            "request-success-total: Invalid enum value 'bored'",
        ),
        (
            {"request-success-total": {"stop": -1}},
            "request-success-total[...]: Expected `int` >= 0",
        ),
        (
            {"total-generation-tokens": 2**63},
            "total-generation-tokens: Expected `int` <= 9223372036854775",
        ),
        (
            {"prefix-cache-hits": -1, "prefix-cache-queries": 2},
            "prefix-cache-hits: Expected `int` >= 0",
        ),
        (
            {"prefix-cache-hits": 1},
            "prefix-cache-hits requires prefix-cache-queries",
        ),
        (
            {"prefix-cache-hits": 3, "prefix-cache-queries": 2},
            "prefix-cache-hits must not exceed prefix-cache-queries",
        ),
        ({"loras": ["lora1"]}, "loras[0]: Expected `object`, got `str`"),
        ({"loras": [{"runing": "a"}]}, "loras[0]: Object contains unknown field `runing`"),
        ({"loras": [{}, {"running": ["a"]}]}, "loras[1].running: Expected `str`, got `array`"),
        ({"loras": [{"timestamp": "noon"}]}, "loras[0].timestamp: Expected `float`, got `str`"),
    ],
)
def test_invalid_fake_metrics_setting_prevents_startup(keys: Any, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(["--fake-metrics", json.dumps(keys)], {})
    line = str(caught.value)
    assert line.startswith("setting fake-metrics: ") and "(flag --fake-metrics) is wrong: " in line
    assert complaint in line


def test_fake_metrics_refresh_interval_must_be_positive() -> None:
    for text in ("0s", "-1s"):
        with pytest.raises(
            ConfigError, match="fake-metrics-refresh-interval: .* must be longer than 0s"
        ):
            load([f"--fake-metrics-refresh-interval={text}"], {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = st.sampled_from([field.encode_name for field in fields(FakeMetrics)])
LIKELY = (
    JSON
    | st.lists(st.integers(0, 9), max_size=5)
    | st.sampled_from(["ramp:0:1:1s", "squarewave:1:0:1"])
)


@given(st.dictionaries(KEYS, LIKELY, max_size=6))
def test_any_valid_fake_metrics_setting_produces_a_scrapable_metrics_page(
    keys: dict[str, Any],
) -> None:
    try:
        parse(json.dumps(keys))
    except FakeMetricsError as error:
        assert str(error) and "\n" not in str(error)
    else:
        families = text_string_to_metric_families(Faked(keys).scrape().decode())
        assert "vllm:cache_config_info" in {family.name for family in families}


ALWAYS = {"cache_config_info", "lora_requests_info"}
SERVER = 'engine="0",model_name="tiny"'


@pytest.mark.parametrize(
    ("keys", "lines"),
    [
        ({"running-requests": 10}, ["vllm:num_requests_running{%s} 10.0"]),
        (
            {"kv-cache-usage": 0.4},
            ["vllm:kv_cache_usage_perc{%s} 0.4", "vllm:gpu_cache_usage_perc{%s} 0.4"],
        ),
        ({"total-generation-tokens": 1500000}, ["vllm:generation_tokens_total{%s} 1.5e+06"]),
        (
            {"prefix-cache-hits": 750, "prefix-cache-queries": 2000},
            [
                "vllm:prefix_cache_hits_total{%s} 750.0",
                "vllm:prefix_cache_queries_total{%s} 2000.0",
            ],
        ),
    ],
)
def test_fake_number_is_exported_unchanged(keys: dict[str, Any], lines: list[str]) -> None:
    shown = Faked(keys).lines()
    assert [line % SERVER for line in lines] == [
        line % SERVER for line in lines if line % SERVER in shown
    ]


def test_all_finish_reasons_of_vllm_are_exported_even_if_not_configured() -> None:
    samples = Faked({"request-success-total": {"stop": 20, "tool_calls": 3}}).samples(
        "request_success_total"
    )
    assert samples == [
        'request_success_total{finished_reason="stop"} 20.0',
        'request_success_total{finished_reason="length"} 0.0',
        'request_success_total{finished_reason="abort"} 0.0',
        'request_success_total{finished_reason="error"} 0.0',
        'request_success_total{finished_reason="repetition"} 0.0',
        'request_success_total{finished_reason="tool_calls"} 3.0',
    ]


def test_fake_bucket_counts_are_observed_at_the_upper_bucket_bounds() -> None:
    faked = Faked({"ttft-buckets-values": [1, 2, 3]})
    assert faked.samples("time_to_first_token_seconds_bucket")[:4] == [
        'time_to_first_token_seconds_bucket{le="0.001"} 1.0',
        'time_to_first_token_seconds_bucket{le="0.005"} 3.0',
        'time_to_first_token_seconds_bucket{le="0.01"} 6.0',
        'time_to_first_token_seconds_bucket{le="0.02"} 6.0',
    ]
    assert faked.samples("time_to_first_token_seconds_bucket")[-1].endswith('{le="+Inf"} 6.0')
    assert faked.value("time_to_first_token_seconds_count") == 6
    assert faked.value("time_to_first_token_seconds_sum") == pytest.approx(
        0.001 + 2 * 0.005 + 3 * 0.01
    )


@pytest.mark.parametrize(("key", "family"), HISTOGRAMS.items())
def test_each_list_of_fake_bucket_counts_is_exported_as_a_histogram(key: str, family: str) -> None:
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


def test_process_and_http_metrics_remain_real() -> None:
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
def test_fake_metric_function_follows_its_shape_over_two_periods(
    shape: Any, values: tuple[float, ...]
) -> None:
    function = Function(shape, start=2.0, end=10.0, period_s=4)
    assert [value_at(function, at_s, 1) for at_s in range(9)] == pytest.approx(values)


def test_fake_request_counts_are_rounded_to_integers() -> None:
    faked = Faked(
        {
            "running-requests": "oscillate:0:5:4s",
            "waiting-requests": "ramp:0:10:4s",
            "kv-cache-usage": "ramp:0:1:8s",
        }
    )
    counts = []
    for _ in range(6):
        counts.append(
            tuple(
                map(
                    faked.value,
                    ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"),
                )
            )
        )
        faked.clock.advance(1)
    assert counts == [
        (2, 0, 0),
        (5, 2, 0.125),
        (2, 5, 0.25),
        (0, 7, 0.375),
        (2, 10, 0.5),
        (5, 10, 0.625),
    ]


def test_fake_value_changes_only_at_the_refresh_interval() -> None:
    faked = Faked({"running-requests": "ramp:0:100:100s"}, "--fake-metrics-refresh-interval", "10s")
    values = []
    for _ in range(5):
        values.append(faked.value("num_requests_running"))
        faked.clock.advance(6)
    assert values == [0, 0, 10, 10, 20]


def test_function_of_a_fake_metric_starts_when_the_metric_is_set() -> None:
    faked = Faked({"running-requests": "ramp:0:10:10s", "waiting-requests": 3})
    faked.clock.advance(5)
    faked.update(waiting_requests="ramp:0:10:10s")
    faked.clock.advance(2)
    assert (faked.value("num_requests_running"), faked.value("num_requests_waiting")) == (7, 2)
    faked.update(running_requests="ramp:10:0:10s")
    assert (faked.value("num_requests_running"), faked.value("num_requests_waiting")) == (10, 2)


Update = Callable[..., None]
ADAPTER = {"running": "a", "waiting": "b", "timestamp": 1257894567}


def post(faked: Faked, body: bytes) -> tuple[int, Any]:
    """Status and JSON of POST /fake_metrics; the content type does not matter."""
    app = application(fake_metrics_routes(BodyLimits(1 << 20, 5.0), faked.live))
    answer = app.test_client().post("/fake_metrics", data=body)
    return answer.status_code, json.loads(answer.data or b"null")


def update_by_post(faked: Faked, **keys: Any) -> None:
    dashed = {key.replace("_", "-"): value for key, value in keys.items()}
    assert post(faked, json.dumps(dashed).encode()) == (204, None)


WAYS = pytest.mark.parametrize("update", [Faked.update, update_by_post], ids=["admin", "post"])


@WAYS
def test_empty_list_or_object_removes_its_metric_family(update: Update) -> None:
    lists = (
        "ttft_buckets_values",
        "tpot_buckets_values",
        "e2erl_buckets_values",
        "request_prompt_tokens",
    )
    faked = Faked(
        {
            **{name.replace("_", "-"): [1] for name in lists},
            "request-success-total": {"stop": 1},
            "running-requests": 1,
        }
    )
    update(faked, request_success_total={}, **dict.fromkeys(lists, []))
    assert faked.names() == {"num_requests_running", "cache_config_info", "lora_requests_info"}


@WAYS
def test_null_and_missing_values_in_an_update_change_no_fake_metric(update: Update) -> None:
    faked = Faked({"running-requests": 1, "loras": [ADAPTER], "request-prompt-tokens": [3]})
    lines_before = faked.lines()
    faked.clock.advance(10)
    update(faked)
    update(faked, running_requests=None, loras=None, request_prompt_tokens=None)
    assert faked.lines() == lines_before


@WAYS
def test_updated_adapters_replace_the_previous_ones(update: Update) -> None:
    faked = Faked({"loras": [ADAPTER]})
    faked.clock.advance(10)
    update(faked, loras=[{**ADAPTER, "running": "c"}])
    labels = (
        'lora_requests_info{max_lora="2",running_lora_adapters="%s",waiting_lora_adapters="%s"} %s'
    )
    assert faked.samples("lora_requests_info") == [labels % ("c", "b", "1.257894567e+09")]
    update(faked, loras=[])
    assert faked.samples("lora_requests_info") == [labels % ("", "", "1.70000001e+09")]


LISTED = {"request-prompt-tokens": [10, 20, 30]}  # amounts to 200 tokens


@pytest.mark.parametrize(
    ("start", "changes", "total"),
    [
        (LISTED, {"request_prompt_tokens": [1, 1]}, 3),
        ({**LISTED, "total-prompt-tokens": 7}, {"request_prompt_tokens": [1, 1]}, 3),
        ({**LISTED, "total-prompt-tokens": 7}, {"total_prompt_tokens": 9}, 9),
        (LISTED, {"request_prompt_tokens": [1, 1], "total_prompt_tokens": 9}, 9),
        ({"total-prompt-tokens": 7}, {"request_prompt_tokens": [1, 1]}, 3),
        ({**LISTED, "total-prompt-tokens": 7}, {"request_generation_tokens": [1]}, 7),
        (
            {**LISTED, "total-prompt-tokens": 7},
            {"request_prompt_tokens": [], "total_prompt_tokens": 9},
            9,
        ),
        ({}, {"request_prompt_tokens": [10, 20, 30]}, 200),
    ],
)
@WAYS
def test_token_total_is_derived_unless_the_update_contains_it(
    update: Update, start: dict[str, Any], changes: dict[str, Any], total: int
) -> None:
    faked = Faked(start)
    update(faked, **changes)
    assert faked.value("prompt_tokens_total") == total


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"kv-cache-usage": 2}', "kv-cache-usage: Expected `float` <= 1.0"),
        (
            b'{"prefix-cache-hits": 11}',
            "prefix-cache-hits must not exceed prefix-cache-queries",
        ),
        (
            b'{"running-requests": 5, "ttft-buckets-values": [-1]}',
            "ttft-buckets-values[0]: Expected `int` >= 0",
        ),
        (
            b'{"request-success-total": {"bored": 1}}',
            "request-success-total: Invalid enum value 'bored'",
        ),
        (b"{", "fake-metrics must be valid JSON"),
        (b"\xff{}", "fake-metrics must be valid JSON"),
        (b'{"running-requests": ' + b"9" * 5000 + b"}", "fake-metrics must be valid JSON"),
        (b'{"loras": ' + b"[" * 100_000 + b"}", "fake-metrics must be valid JSON"),
    ],
)
def test_invalid_fake_metrics_update_changes_nothing(body: bytes, message: str) -> None:
    faked = Faked({"running-requests": 1, "prefix-cache-hits": 1, "prefix-cache-queries": 10})
    lines_before = faked.lines()
    status, answer = post(faked, body)
    assert (status, answer["error"]["type"]) == (400, "BadRequestError")
    assert answer["error"]["param"] == "fake-metrics"
    assert answer["error"]["message"].startswith(message)
    assert faked.lines() == lines_before


def test_served_requests_do_not_change_fake_metrics() -> None:
    keys = {"running-requests": 10, "prefix-cache-hits": 100, "prefix-cache-queries": 200}
    flags = ["--fake-metrics", json.dumps(keys), "--force-dummy-tokenizer"]
    client = app_of(*flags).test_client()

    def metric_lines() -> list[str]:
        return [line for line in client.get("/metrics").text.splitlines() if "vllm:" in line]

    counters_before = metric_lines()
    assert client.post("/v1/completions", json={"prompt": "Hello"}).status_code == 200
    assert metric_lines() == counters_before
    assert client.post("/fake_metrics", json={"running-requests": 7}).status_code == 204
    assert any(re.match(r"vllm:num_requests_running\{.*\} 7.0", line) for line in metric_lines())
    true = app_of("--force-dummy-tokenizer").test_client()
    assert true.post("/fake_metrics", json={"running-requests": 7}).status_code == 400
