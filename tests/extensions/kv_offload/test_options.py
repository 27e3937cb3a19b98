"""Options of vLLM and settings of the tiers."""

import json
from typing import Any

import pytest

from app.core.settings import load, resolve, settings_type
from app.extensions.kv_offload import KvOffload
from app.extensions.kv_offload.options import GIB, offload_options
from config import ConfigError, Settings
from tests.application import app_of
from vllm_facts.serve import settings_of


def served(*options: str) -> Settings:
    """The settings of a vLLM command line."""
    return resolve(settings_of(["tiny", *options], {}, settings_type()), {}, lambda text: None)


def connected(**extra: Any) -> Settings:
    """The settings of an OffloadingConnector with these further fields."""
    config = {
        "kv_connector": "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }
    return served("--kv-transfer-config", json.dumps(config))


def test_offloading_size_enables_a_host_tier() -> None:
    settings = served("--kv-offloading-size", "2.5")

    assert settings.kvcache.kv_connector == "offloading"
    assert KvOffload.is_enabled(settings)
    assert offload_options(settings).chunks == 2.5 * GIB // (16 * 131_072)


def test_lmcache_backend_selects_the_lmcache_connector() -> None:
    settings = served("--kv-offloading-size", "2", "--kv-offloading-backend", "lmcache")

    assert settings.kvcache.kv_connector == "lmcache-mp"
    assert not KvOffload.is_enabled(settings)


def test_kv_offloading_size_option_overrides_the_transfer_config() -> None:
    config = {
        "kv_connector": "NixlConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"cpu_bytes_to_use": GIB, "eviction_policy": "arc"},
    }

    settings = served("--kv-offloading-size", "2", "--kv-transfer-config", json.dumps(config))

    options = offload_options(settings)
    assert settings.kvcache.kv_connector == "offloading"
    assert (options.chunks, options.policy) == (1024, "arc")


def test_connector_json_sets_the_tier_fields() -> None:
    options = offload_options(
        connected(
            cpu_bytes_to_use=GIB,
            spec_name="TieringOffloadingSpec",
            block_size=64,
            eviction_policy="arc",
            offload_prompt_only=False,
            self_describing_kv_events=True,
            secondary_tiers=[{"type": "fs", "root_dir": "/kv", "enable_kv_events": True}],
        )
    )

    assert (options.chunks, options.blocks_per_chunk, options.policy) == (128, 4, "arc")
    assert options.has_full_events
    assert not options.is_prompt_only
    assert options.has_disk_events
    assert options.disk_chunks == 1024 * 128


def test_multi_connector_enables_both_offloading_and_nixl_transfers() -> None:
    parts = [
        {"kv_connector": "NixlConnector", "kv_role": "kv_both"},
        {
            "kv_connector": "OffloadingConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"cpu_bytes_to_use": GIB},
        },
    ]
    config = {
        "kv_connector": "MultiConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"connectors": parts},
    }

    settings = served("--kv-transfer-config", json.dumps(config))

    assert settings.kvcache.kv_connector == "nixl"
    assert KvOffload.is_enabled(settings)


def test_offloading_connector_without_a_size_does_not_enable_offloading() -> None:
    settings = connected()

    assert settings.kvcache.kv_connector == "offloading"
    assert not KvOffload.is_enabled(settings)


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"cpu_bytes_to_use": 0}, "cpu_bytes_to_use must be a positive number, got 0"),
        ({"cpu_bytes_to_use": "4GB"}, "cpu_bytes_to_use must be a positive number, got '4GB'"),
        ({"cpu_bytes_to_use": 1, "eviction_policy": "fifo"}, "eviction_policy must be one of lru"),
        ({"cpu_bytes_to_use": 1, "store_threshold": -1}, "store_threshold must be a whole number"),
        ({"cpu_bytes_to_use": 1, "block_size": 1, "blocks_per_chunk": 1}, "only one of block_size"),
        ({"spec_name": "DiskSpec"}, "spec_name must be one of CPUOffloadingSpec, Tiering"),
        (
            {"spec_name": "TieringOffloadingSpec", "secondary_tiers": {}},
            "secondary_tiers must be a list of objects",
        ),
        (
            {"spec_name": "TieringOffloadingSpec", "secondary_tiers": [{"type": "tape"}]},
            "type must be one of example, fs, p2p, obj, kvcr, got 'tape'",
        ),
    ],
)
def test_invalid_connector_field_prevents_startup(extra: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        connected(**extra)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", ["0", "-1", "inf"])
def test_non_positive_tier_size_prevents_startup(size: str) -> None:
    with pytest.raises(
        ConfigError, match="flag --kv-offloading-size: the value must be greater than 0"
    ):
        served("--kv-offloading-size", size)


QUERIES = "vllm:prefix_cache_queries_total"
HITS = "vllm:external_prefix_cache_hits_total"
TIER = ("--enable-kvcache", "--kv-connector", "offloading", "--kv-offload-size", "1")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--enable-kvcache", "--kv-offload-size", "1"), "requires kv-connector to be offloading"),
        ((*TIER[:4], "0.000001"), "1e-06 GiB is too small for a chunk of 2097152 bytes"),
        ((*TIER, "--kv-offload-block-size", "24"), r"24 is not a multiple of block-size \(16\)"),
        (
            (*TIER, "--kv-offload-disk-size", "1", "--kv-offload-store-threshold", "2"),
            "setting kv-offload-store-threshold: cannot be combined with kv-offload-disk-size",
        ),
    ],
)
def test_invalid_tier_settings_prevent_startup(flags: tuple[str, ...], problem: str) -> None:
    with pytest.raises(SystemExit, match=problem):
        app_of(*flags)


def test_server_without_a_prefix_cache_finds_prompts_only_in_its_tiers() -> None:
    client = app_of(*TIER[1:], "--zmq-endpoint", "").test_client()
    for _ in range(2):
        question = {"prompt": list(range(200)), "max_tokens": 1}
        assert client.post("/v1/completions", json=question).status_code == 200

    metrics = client.get("/metrics").text
    [hits] = [line for line in metrics.splitlines() if line.startswith(HITS)]
    [queries] = [line for line in metrics.splitlines() if line.startswith(QUERIES)]
    assert hits.endswith(" 192.0")
    assert queries.endswith(" 0.0")


def test_server_loads_a_prompt_that_its_cache_has_evicted() -> None:
    client = app_of(*TIER, "--kv-cache-size", "14", "--zmq-endpoint", "").test_client()
    for first in (0, 1000, 0):
        question = {"prompt": list(range(first, first + 200)), "max_tokens": 1}
        answer = client.post("/v1/completions", json=question)
        assert answer.status_code == 200

    metrics = client.get("/metrics").text
    [hits] = [line for line in metrics.splitlines() if line.startswith(HITS)]
    assert hits.endswith(" 192.0")
    assert "vllm:kv_offload_cpu_cache_usage_perc{" in metrics


def test_tier_metrics_are_off_by_default() -> None:
    app = app_of("--enable-kvcache", "--zmq-endpoint", "")

    assert KvOffload.name not in {extension.name for extension in app.extensions}
    assert "vllm:kv_offload_" not in app.test_client().get("/metrics").text
    assert load([], {}).get("kv-offload-size", None) == 0
