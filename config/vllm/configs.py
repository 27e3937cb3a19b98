"""vLLM's options that are JSON objects: the fields that have a meaning here."""

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from config.declaration import ConfigError
from config.validation import suggestion

T = TypeVar("T", bound=Struct)


class KVEventsConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """`--kv-events-config`, with vLLM's defaults."""

    enable_kv_cache_events: bool = False
    publisher: Literal["null", "zmq"] | None = None
    """`zmq` where events are enabled."""
    endpoint: str = "tcp://*:5557"
    replay_endpoint: str | None = None
    buffer_steps: Annotated[int, Meta(ge=1)] = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    @property
    def publishes(self) -> bool:
        """Events are told to somebody."""
        return self.enable_kv_cache_events and self.publisher != "null"


class KVTransferConfig(Struct, kw_only=True):
    """`--kv-transfer-config`; each connector has further fields of its own."""

    kv_connector: str | None = None
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"] | None = None
    engine_id: str | None = None
    kv_connector_extra_config: dict[str, Any] = {}

    @property
    def connectors(self) -> list[str | None]:
        """Its name, or those that a MultiConnector has."""
        inner = self.kv_connector_extra_config.get("connectors")
        several = inner if self.kv_connector == "MultiConnector" and isinstance(inner, list) else []
        return [self.kv_connector, *(one.get("kv_connector") for one in several if isinstance(one, dict))]


class ProfilerConfig(Struct, kw_only=True):
    """`--profiler-config`: that there is one at all."""

    profiler: str | None = None


class WeightTransferConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    """`--weight-transfer-config`."""

    backend: str = "nccl"


def read_config(option: str, text: str, kind: type[T]) -> T:
    """The object that `text` is. ConfigError in one line, with the field that is wrong."""
    try:
        return msgspec.convert(msgspec.json.decode(text), kind, strict=False)
    except msgspec.ValidationError as error:
        fields = kind.__struct_fields__
        unknown = str(error).rpartition("unknown field `")[2].partition("`")[0]
        close = suggestion(unknown, names=fields) if "unknown field" in str(error) else ""
        raise ConfigError(f"flag --{option}: {error}{close}") from None
    except (msgspec.DecodeError, RecursionError):
        raise ConfigError(f"flag --{option}: {text[:80]!r} must be a JSON object") from None
