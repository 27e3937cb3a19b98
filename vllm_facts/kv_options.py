"""Options of vLLM about KV events and about transfers between servers, as settings."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from config.declaration import closest, suggestion
from config.durations import format_duration
from config.flag_words import WrongValueError
from config.sources import FlagValues
from config.untrusted import UntrustedDataError, decode_untrusted
from vllm_facts.offload_options import offload_settings
from vllm_facts.option import unknown_name

T = TypeVar("T")

CONNECTORS = {
    "NixlConnector": "nixl",
    "NixlPullConnector": "nixl",
    "NixlPushConnector": "nixl-push",
    "ExampleConnector": "example",
    "OffloadingConnector": "offloading",
    "SimpleCPUOffloadConnector": "offloading",
    "DecodeBenchConnector": "",
    "ExampleHiddenStatesConnector": "",
    "FlexKVConnectorV1": "",
    "HF3FSKVConnector": "",
    "LMCacheConnectorV1": "lmcache",
    "LMCacheMPConnector": "lmcache-mp",
    "MoRIIOConnector": "moriio",
    "MooncakeConnector": "mooncake",
    "MooncakeStoreConnector": "",
    "MultiConnector": "",
}
"""vLLM's connectors -> value of the setting `kv-connector`."""
PLUGIN_CONNECTORS = {
    "AIBrixPDReuseConnector": "aibrix",
    "AscendStoreConnector": "vllm-ascend",
    "FlagCXConnector": "vllm-plugin-FL",
    "LLMDataDistCMgrConnector": "vllm-ascend",
    "MooncakeConnectorStoreV1": "vllm-ascend",
    "MooncakeConnectorV1": "vllm-ascend",
    "MooncakeHybridConnector": "vllm-ascend",
    "MooncakeLayerwiseConnector": "vllm-ascend",
    "RecomputeCPUOffloadConnector": "vllm-ascend",
    "UCMConnector": "vllm-ascend",
}
"""Connectors of public plugins of vLLM -> the plugin; they are not simulated."""

HANDOFFS = ("nixl", "nixl-push", "mooncake", "moriio")
"""Values of `kv-connector` with a side channel between the pods."""
PEERS = (*HANDOFFS, "p2p")
"""Values of `kv-connector` whose pods get blocks of other pods."""
MORIIO_NOTIFY_PORT = 61_005
"""vLLM's default port of notifications between the pods of a MoRIIOConnector."""


class KVEventsConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """`--kv-events-config`, with vLLM's defaults."""

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None
    """None means `zmq` if events are enabled."""
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: Annotated[int, Meta(ge=1)] = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""


class KVTransferConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """`--kv-transfer-config`; `kv_connector_extra_config` has the fields of one connector."""

    kv_connector: str | None = None
    kv_connector_module_path: str | None = None
    """Module with a connector that is not one of vLLM's."""
    kv_connector_extra_config: dict[str, Any] = {}
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"] | None = None
    kv_port: int = 14579
    kv_buffer_device: str = "cuda"
    engine_id: str | None = None
    enable_permute_local_kv: bool = False
    kv_load_failure_policy: Literal["recompute", "fail"] = "fail"


class ECTransferConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """`--ec-transfer-config`: the transfer of encoded images between servers."""

    ec_connector: str | None = None
    ec_connector_module_path: str | None = None
    ec_connector_extra_config: dict[str, Any] = {}
    ec_role: Literal["ec_producer", "ec_consumer", "ec_both"] | None = None
    ec_ip: str = "127.0.0.1"
    ec_port: int = 14579
    ec_buffer_device: str | None = "cuda"
    ec_buffer_size: float = 1e9
    """Bytes."""
    engine_id: str | None = None


def read_config(text: str, kind: type[T]) -> T:
    """Parses an option's JSON object.

    Raises:
        ValueError: The text is not an object of this kind; the message has the wrong field.
    """
    try:
        value = decode_untrusted(text)
    except UntrustedDataError:
        raise ValueError(f"{text[:80]!r} must be a JSON object") from None
    fields: tuple[str, ...] = getattr(kind, "__struct_fields__", ())
    names = value if fields and isinstance(value, dict) else ()
    for name in names:
        if name not in fields:
            raise WrongValueError(
                f"Object contains unknown field `{name}`",
                rule="known field",
                fix=closest(name, fields),
                advice=suggestion(name, names=fields),
            )
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None


def kv_events_settings(text: str) -> FlagValues:
    """Returns the settings that `--kv-events-config` sets.

    Raises:
        ValueError: As `read_config`.
    """
    config = read_config(text, KVEventsConfig)
    if not config.enable_kv_cache_events or config.publisher == "null":
        return {"zmq-endpoint": ""}
    return {
        "zmq-endpoint": config.endpoint,
        "kv-events-replay-endpoint": config.replay_endpoint or "",
        "kv-events-replay-queue-size": str(config.buffer_steps),
        "kv-events-topic": config.topic,
    }


def kv_transfer_settings(text: str) -> FlagValues:
    """Returns the settings that `--kv-transfer-config` sets.

    Raises:
        ValueError: As `read_config`, or a connector is unknown or has no role.
    """
    config = read_config(text, KVTransferConfig)
    connectors = _connectors(config)
    for connector in connectors:
        _check_connector(connector)
    parts = [_part_settings(connector, config) for connector in connectors]
    return _united(parts)


def plugin_connectors(text: str) -> Iterator[str]:
    """Yields a warning for each connector of a valid `--kv-transfer-config` that a plugin adds."""
    for connector in _connectors(read_config(text, KVTransferConfig)):
        plugin = PLUGIN_CONNECTORS.get(connector.kv_connector or "")
        if plugin is not None and connector.kv_connector_module_path is None:
            yield (
                f"--kv-transfer-config: {connector.kv_connector} starts a vLLM that has the plugin "
                f"{plugin} only, and is not simulated"
            )


def _connectors(config: KVTransferConfig) -> list[KVTransferConfig]:
    """Returns a connector and its parts."""
    connectors = [config]
    if config.kv_connector == "MultiConnector":
        items = config.kv_connector_extra_config.get("connectors")
        if isinstance(items, list):
            for item in items:
                if isinstance(item, dict):
                    connectors.append(read_config(json.dumps(item), KVTransferConfig))
    return connectors


def _united(parts: list[FlagValues]) -> FlagValues:
    """Returns the settings of the first part with transfers, and the store of the first other."""
    handoffs = [part for part in parts if part["kv-connector"] in PEERS]
    stores = [part for part in parts if part["kv-connector"] and part not in handoffs]
    if handoffs and stores:
        return {**stores[0], **handoffs[0], "kv-store": stores[0]["kv-connector"]}
    for part in (*handoffs, *stores):
        return part
    return {"kv-connector": ""}


def _part_settings(part: KVTransferConfig, config: KVTransferConfig) -> FlagValues:
    """Returns the settings of one connector, which may be a part of that of `config`."""
    simulated = CONNECTORS.get(part.kv_connector or "", "")
    if part.kv_connector == "OffloadingConnector":
        return offload_settings(part.kv_connector_extra_config)
    if simulated.startswith("lmcache"):
        return {"kv-connector": simulated, "kv-role": part.kv_role or "kv_both"}
    if simulated not in HANDOFFS:
        return {"kv-connector": simulated}
    # The policy is that of the whole configuration, also for a MultiConnector.
    settings = _handoff_settings(part, simulated, config.kv_load_failure_policy)
    if config.engine_id:
        settings["kv-engine-id"] = config.engine_id
    return settings


def _handoff_settings(config: KVTransferConfig, connector: str, failure_policy: str) -> FlagValues:
    """Returns the settings of a connector with a side channel. ValueError for a wrong duration."""
    settings: FlagValues = {"kv-connector": connector, "kv-load-failure-policy": failure_policy}
    extra = config.kv_connector_extra_config
    if connector in ("mooncake", "moriio"):
        settings["kv-role"] = config.kv_role or "kv_both"
    else:
        lease_s = extra.get("kv_lease_duration")
        if lease_s is not None:
            if type(lease_s) not in (int, float) or lease_s <= 0:
                raise ValueError(f"kv_lease_duration must be a positive number, got {lease_s!r}")
            settings["kv-lease-duration"] = format_duration(lease_s)
    if connector == "moriio":
        settings["kv-side-channel-port"] = str(extra.get("notify_port") or MORIIO_NOTIFY_PORT)
        settings["moriio-read-mode"] = str(extra.get("read_mode", "false")).lower()
        if extra.get("handshake_port"):
            settings["moriio-handshake-port"] = str(extra["handshake_port"])
        if extra.get("proxy_ip"):
            settings["moriio-proxy"] = f"tcp://{extra['proxy_ip']}:{extra.get('proxy_ping_port')}"
    return settings


def ec_transfer_settings(text: str) -> FlagValues:
    """Returns the setting that `--ec-transfer-config` sets: a producer only encodes images.

    Raises:
        ValueError: As `read_config`, or a connector has no role.
    """
    config = read_config(text, ECTransferConfig)
    if config.ec_connector is None:
        return {}
    if config.ec_role is None:
        raise ValueError("ec_role is required; it must be ec_producer, ec_consumer, or ec_both")
    if config.ec_role == "ec_producer":
        return {"mm-encoder-only": "true"}
    return {}


def _check_connector(config: KVTransferConfig) -> None:
    """Raises ValueError for a connector that vLLM does not have, or one without a role."""
    name = config.kv_connector
    if name is None:
        return
    is_known = name in CONNECTORS or name in PLUGIN_CONNECTORS
    if not is_known and config.kv_connector_module_path is None:
        names = tuple(sorted(CONNECTORS))
        raise unknown_name(name, names, subject=f"kv_connector {name!r} ")
    if config.kv_role is None:
        raise ValueError("kv_role is required; it must be kv_producer, kv_consumer, or kv_both")
