"""Rules of older versions in steps, memory and the KV cache."""

import pytest

from app.extensions.costs.version_rules import (
    CacheRules,
    MemoryUse,
    nearest_measured,
    rules_of,
    version_of,
)
from config import ConfigError
from vllm_facts.version import DEFAULT, NEWEST


@pytest.mark.parametrize("kind", [MemoryUse, CacheRules])
def test_defaults_of_rules_are_those_of_the_newest_version(
    kind: type[MemoryUse | CacheRules],
) -> None:
    assert rules_of(NEWEST, kind) == kind()
    assert rules_of("", kind) == rules_of(DEFAULT, kind)


@pytest.mark.parametrize(
    ("version", "use"),
    [
        ("0.11", {"logit_bytes": 38.3, "encoder_gib": 5.4, "utilization": 0.9}),
        ("0.12", {"logit_bytes": 38.3, "encoder_gib": 1.75, "outside_many_gib": 2.3}),
        ("0.16.0", {"expert_copies": 1, "has_marlin_on_hopper": False}),
        ("0.17.1", {"expert_copies": 2, "has_marlin_on_hopper": True, "graphs_gib": 0.0}),
        ("0.19.1", {"utilization": 0.9, "packed_experts_gib": 0.0}),
        ("v0.20.2", {"utilization": 0.92, "graphs_gib": 0.7, "packed_experts_gib": 1.0}),
        ("0.23", {"packed_experts_gib": 0.0}),
    ],
)
def test_memory_is_that_of_the_version(version: str, use: dict[str, float]) -> None:
    rules = rules_of(version, MemoryUse)
    assert {name: getattr(rules, name) for name in use} == use


def test_states_and_logs_of_the_cache_are_those_of_the_version() -> None:
    assert not rules_of("0.15", CacheRules).keeps_state_ends
    assert rules_of("0.16", CacheRules).keeps_state_ends
    assert rules_of("0.19", CacheRules).logs_by_group
    assert rules_of("0.20.1", CacheRules).logs_by_group
    assert not rules_of("0.20.2", CacheRules).logs_by_group
    assert not rules_of("0.20", CacheRules).logs_by_group


@pytest.mark.parametrize(
    ("version", "minor", "reason"),
    [
        ("", 28, ""),
        ("0.18.1", 18, ""),
        ("0.13", 12, "the nearest that was measured"),
        ("0.26", 28, "the nearest that was measured"),
        ("0.33", 28, "the newest known version"),
    ],
)
def test_constants_are_those_of_the_nearest_measured_version(
    version: str, minor: int, reason: str
) -> None:
    nearest, text = nearest_measured(version)
    assert nearest == minor
    assert text.endswith(reason) and bool(text) == bool(reason)


@pytest.mark.parametrize("version", ["0.9", "0.999", "cu128", "0.\n9"])
def test_unknown_version_is_one_line(version: str) -> None:
    with pytest.raises(ConfigError, match=r"must be a version of vLLM from 0\.10 to") as refusal:
        version_of(version)
    assert "\n" not in str(refusal.value)
