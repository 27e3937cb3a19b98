"""Options of vLLM about tiers of KV blocks in host memory and on disk, as settings."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from config.declaration import ConfigError
from config.sources import FlagValues
from config.untrusted import UntrustedDataError, decode_untrusted, python_json

GIB = 1 << 30
DISK_GIB = 1024
"""Size of a tier of files, which vLLM does not limit."""
TIERING = "TieringOffloadingSpec"
"""Value of `spec_name` with which an OffloadingConnector has further tiers."""
SPECS = ("CPUOffloadingSpec", TIERING)
TIER_TYPES = ("example", "fs", "p2p", "obj", "kvcr")
"""vLLM's types of secondary tiers."""
POLICIES = ("lru", "arc")
NUMBERS = {
    "block_size": "kv-offload-block-size",
    "blocks_per_chunk": "kv-offload-blocks-per-chunk",
    "store_threshold": "kv-offload-store-threshold",
}
SWITCHES = {
    "offload_prompt_only": "kv-offload-prompt-only",
    "self_describing_kv_events": "kv-offload-full-events",
}
"""Fields with numbers and with switches -> the settings that they set."""
SIZE = "kv-offloading-size"
BACKEND = "kv-offloading-backend"
TRANSFER = "kv-transfer-config"
CONNECTORS = {"native": "OffloadingConnector", "lmcache": "LMCacheMPConnector"}
"""Connector of each backend."""


def merge_offloading(options: FlagValues) -> None:
    """Writes `--kv-offloading-size` and its backend into `--kv-transfer-config`, as vLLM does.

    Raises:
        ConfigError: The size is not positive.
    """
    text = options.get(SIZE)
    if not isinstance(text, str):
        return
    size = float(text)
    if not 0 < size < float("inf"):
        raise ConfigError(f"flag --{SIZE}: the value must be greater than 0, got {text}")
    config: Any = {}
    try:
        config = decode_untrusted(str(options.get(TRANSFER, "{}")), decoder=python_json)
    except UntrustedDataError:
        return  # reported with the option
    if not isinstance(config, dict):
        return
    backend = str(options.get(BACKEND, "native"))
    config["kv_connector"] = CONNECTORS[backend]
    config["kv_role"] = "kv_both"
    extra = config.setdefault("kv_connector_extra_config", {})
    if backend == "native" and isinstance(extra, dict):
        extra["cpu_bytes_to_use"] = size * GIB
    options[TRANSFER] = json.dumps(config)


def offload_settings(extra: Mapping[str, Any]) -> FlagValues:
    """Returns the settings of an OffloadingConnector with this `kv_connector_extra_config`.

    Without `cpu_bytes_to_use`, which vLLM requires, there are no tiers of limited size.

    Raises:
        ValueError: A field has a wrong value.
    """
    settings: FlagValues = {"kv-connector": "offloading"}
    _check_name(extra, "spec_name", names=SPECS, path_field="spec_module_path")
    tiers = _secondary_tiers(extra)
    for tier in tiers:
        if tier["type"] == "p2p":
            return _peer_settings(tier)
    if "cpu_bytes_to_use" not in extra:
        return settings
    settings["kv-offload-size"] = repr(_positive(extra, "cpu_bytes_to_use") / GIB)
    policy = extra.get("eviction_policy", POLICIES[0])
    _check_name(extra, "eviction_policy", names=POLICIES, path_field="cache_policy_module_path")
    if policy in POLICIES:
        settings["kv-offload-policy"] = policy
    if "block_size" in extra and "blocks_per_chunk" in extra:
        raise ValueError("only one of block_size and blocks_per_chunk is allowed")
    settings |= {
        name: str(_whole(extra, field)) for field, name in NUMBERS.items() if field in extra
    }
    settings |= {name: _switch(extra[field]) for field, name in SWITCHES.items() if field in extra}
    for tier in tiers:
        if tier["type"] == "fs":
            settings["kv-offload-disk-size"] = str(DISK_GIB)
            settings["kv-offload-disk-events"] = _switch(tier.get("enable_kv_events"))
            break
    return settings


def _peer_settings(tier: Mapping[str, Any]) -> FlagValues:
    """Returns the settings of a tier of other pods."""
    settings: FlagValues = {"kv-connector": "p2p"}
    for key in ("host", "port"):
        if tier.get(key):
            settings[f"kv-side-channel-{key}"] = str(tier[key])
    return settings


def _secondary_tiers(extra: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Returns the tiers besides the one in host memory."""
    tiers = extra.get("secondary_tiers", [])
    if extra.get("spec_name") != TIERING:
        return []
    if not isinstance(tiers, list) or not all(isinstance(tier, dict) for tier in tiers):
        raise ValueError("secondary_tiers must be a list of objects")
    for tier in tiers:
        if "type" not in tier:
            raise ValueError("each object in secondary_tiers must have a type")
        _check_name(tier, "type", names=TIER_TYPES, path_field="module_path")
    return tiers


def _switch(value: object) -> str:
    return str(bool(value)).lower()


def _check_name(
    config: Mapping[str, Any], field: str, *, names: Collection[str], path_field: str
) -> None:
    """Raises ValueError for a name that is not vLLM's, unless a module has it."""
    value = config.get(field)
    if value is not None and value not in names and config.get(path_field) is None:
        raise ValueError(f"{field} must be one of {', '.join(names)}, got {value!r}")


def _positive(extra: Mapping[str, Any], field: str) -> float:
    value = extra[field]
    if type(value) not in (int, float) or not 0 < value < float("inf"):
        raise ValueError(f"{field} must be a positive number, got {value!r}")
    return float(value)


def _whole(extra: Mapping[str, Any], field: str) -> int:
    value = extra[field]
    if type(value) is not int or value < 0:
        raise ValueError(f"{field} must be a whole number, got {value!r}")
    return value
