"""Fake metrics change in parts while the server runs, by /admin/config and by POST /fake_metrics alike."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from app.serving.api.admin.server import fake_metrics_routes
from app.serving.http.context import BodyLimits
from app.wiring.factory import create_app
from config.loader import load
from tests.application import application
from tests.metrics.faked import Faked

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
def test_an_empty_list_or_object_makes_a_family_disappear(update: Update) -> None:
    lists = ("ttft_buckets_values", "tpot_buckets_values", "e2erl_buckets_values", "request_prompt_tokens")
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
def test_null_and_nothing_change_nothing(update: Update) -> None:
    faked = Faked({"running-requests": 1, "loras": [ADAPTER], "request-prompt-tokens": [3]})
    before = faked.lines()
    faked.clock.advance(10)
    update(faked)
    update(faked, running_requests=None, loras=None, request_prompt_tokens=None)
    assert faked.lines() == before


@WAYS
def test_adapters_are_replaced_and_an_empty_list_is_an_entry_of_now(update: Update) -> None:
    faked = Faked({"loras": [ADAPTER]})
    faked.clock.advance(10)
    update(faked, loras=[{**ADAPTER, "running": "c"}])
    labels = 'lora_requests_info{max_lora="2",running_lora_adapters="%s",waiting_lora_adapters="%s"} %s'
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
        ({**LISTED, "total-prompt-tokens": 7}, {"request_prompt_tokens": [], "total_prompt_tokens": 9}, 9),
        ({}, {"request_prompt_tokens": [10, 20, 30]}, 200),
    ],
)
@WAYS
def test_a_total_is_derived_anew_unless_it_comes_along(
    update: Update, start: dict[str, Any], changes: dict[str, Any], total: int
) -> None:
    faked = Faked(start)
    update(faked, **changes)
    assert faked.value("prompt_tokens_total") == total


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"kv-cache-usage": 2}', "kv-cache-usage: Expected `float` <= 1.0"),
        (b'{"prefix-cache-hits": 11}', "prefix-cache-hits must not be more than prefix-cache-queries"),
        (
            b'{"running-requests": 5, "ttft-buckets-values": [-1]}',
            "ttft-buckets-values[0]: Expected `int` >= 0",
        ),
        (b'{"request-success-total": {"bored": 1}}', "request-success-total: Invalid enum value 'bored'"),
        (b"{", "fake-metrics must be JSON"),
        (b"\xff{}", "fake-metrics must be JSON"),
        (b'{"running-requests": ' + b"9" * 5000 + b"}", "fake-metrics must be JSON"),
        (b'{"loras": ' + b"[" * 100_000 + b"}", "fake-metrics must be JSON"),
    ],
)
def test_a_wrong_update_is_refused_and_changes_nothing(body: bytes, message: str) -> None:
    faked = Faked({"running-requests": 1, "prefix-cache-hits": 1, "prefix-cache-queries": 10})
    before = faked.lines()
    status, answer = post(faked, body)
    assert (status, answer["error"]["type"]) == (400, "BadRequestError")
    assert answer["error"]["param"] == "fake-metrics"
    assert answer["error"]["message"].startswith(message)
    assert faked.lines() == before


def test_a_server_serves_requests_and_counts_none_of_them() -> None:
    keys = {"running-requests": 10, "prefix-cache-hits": 100, "prefix-cache-queries": 200}
    flags = ["--fake-metrics", json.dumps(keys), "--force-dummy-tokenizer"]
    client = create_app(load(flags, {})).test_client()

    def told() -> list[str]:
        return [line for line in client.get("/metrics").text.splitlines() if "vllm:" in line]

    before = told()
    assert client.post("/v1/completions", json={"prompt": "Hello"}).status_code == 200
    assert told() == before
    assert client.post("/fake_metrics", json={"running-requests": 7}).status_code == 204
    assert any(re.match(r"vllm:num_requests_running\{.*\} 7.0", line) for line in told())
    true = create_app(load(["--force-dummy-tokenizer"], {})).test_client()
    assert true.post("/fake_metrics", json={"running-requests": 7}).status_code == 400
