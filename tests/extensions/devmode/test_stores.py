"""What comes back from the store of a connector after the cache has forgotten it."""

from typing import Any

import pytest

from app.core.server.flask.application import Understudy
from tests.application import app_of

LONG = list(range(100, 220))
"""120 tokens: three whole blocks of 32."""
STEPS = ("--timing", "steps")


def served(connector: str, *flags: str) -> Understudy:
    line = (
        "--kv-connector",
        connector,
        "--enable-kvcache",
        "--block-size=32",
        "--zmq-endpoint=",
        *flags,
    )
    shown = ("--enable-prompt-tokens-details", "--server-dev-mode", "--force-dummy-tokenizer")
    return app_of(*line, *shown)


def cached(app: Understudy, prompt: list[int], reset: bool = True, **fields: Any) -> int:
    client = app.test_client()
    if reset:
        assert client.post("/reset_prefix_cache").get_json() == {"success": True}
    body = client.post(
        "/v1/completions", json={"prompt": prompt, "max_tokens": 1, **fields}
    ).get_json()
    if "do_remote_decode" not in fields.get("kv_transfer_params", ()):
        assert body["kv_transfer_params"] is None
    return body["usage"]["prompt_tokens_details"]["cached_tokens"]  # type: ignore[no-any-return]


def metric(app: Understudy, name: str) -> float:
    text = app.test_client().get("/metrics").text
    return sum(
        float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name)
    )


CASES = [
    ("example", LONG, 96),
    ("example", LONG[:97], 0),  # its block of the last two tokens is not looked for
    ("example", LONG[:97] + [5] * 20, 96),
    ("offloading", LONG, 96),
    ("offloading", LONG[:64] + [5] * 20, 64),
    ("none", LONG, 0),
]


@pytest.mark.parametrize("flags", [(), STEPS], ids=["alone", "steps"])
@pytest.mark.parametrize(("connector", "prompt", "cached_count"), CASES)
def test_prompt_is_found_in_the_external_store_after_a_prefix_cache_reset(
    connector: str, prompt: list[int], cached_count: int, flags: tuple[str, ...]
) -> None:
    app = served(connector, *flags)
    assert cached(app, LONG, reset=False) == 0
    assert cached(app, prompt) == cached_count
    queried = len(LONG) + len(prompt) if connector != "none" else 0
    assert metric(app, "vllm:external_prefix_cache_queries_total") == queried
    assert metric(app, "vllm:external_prefix_cache_hits_total") == cached_count
    tier = "host" if connector == "offloading" else "external_unspecified"
    labels = f'engine="0",model_name="understudy-tiny",source="{tier}"'
    label = f"vllm:prompt_tokens_cached_by_source_total{{{labels}"
    assert metric(app, label) == cached_count
    assert metric(app, "vllm:prompt_tokens_cached_total") == cached_count
    assert metric(app, "vllm:nixl_xfer_time_seconds_count") == 0


@pytest.mark.parametrize(
    ("fields", "expected"), [({}, 120), ({"remote_prefill_cached_tokens": 7}, 7)]
)
def test_remote_prefill_parameter_sets_the_cached_tokens_of_a_decode(
    fields: dict[str, int], expected: int
) -> None:
    app = served("")
    assert (
        cached(app, LONG, False, kv_transfer_params={"do_remote_prefill": True, **fields})
        == expected
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": LONG}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    ],
)
def test_top_level_transfer_parameters_have_the_effect_of_nested_ones(
    path: str, body: dict[str, Any]
) -> None:
    client = served("").test_client()
    body = {**body, "max_tokens": 1}
    inside = client.post(
        path, json={**body, "kv_transfer_params": {"do_remote_decode": True}}
    ).get_json()
    flat = client.post(
        path, json={**body, "do_remote_decode": True, "remote_host": None}
    ).get_json()
    moved = {name: flat["kv_transfer_params"].pop(name) for name in ("remote_request_id",)}
    inside["kv_transfer_params"].pop("remote_request_id")
    assert flat["kv_transfer_params"] == inside["kv_transfer_params"]
    assert moved["remote_request_id"].startswith(flat["id"])
    assert flat["choices"][0]["finish_reason"] == "length"
    off = client.post(path, json={**body, "do_remote_decode": False, "remote_port": "x"}).get_json()
    assert off["kv_transfer_params"] is None
