"""Effects of vLLM's options: the settings that each option sets, and vLLM's defaults.

An option with the name of a setting sets that setting. `SPECIAL` has further effects. All other options are
ignored.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from config.declaration import ConfigError
from config.settings import BY_NAME
from config.sources import Flags
from config.validation import suggestion
from config.vllm.command_line import OBSOLETE, Line, Value
from config.vllm.options import options

T = TypeVar("T", bound=Struct)
Values = Mapping[str, str | list[str]]

MODEL = "Qwen/Qwen3-0.6B"
CONTEXT_LENGTH = 32_768
"""Context length, in tokens, of a model without a local config.json; common among current models."""
FULL_PROMPTS = 8
"""Requests of the greatest length that fit in the KV cache."""
DEFAULTS = {
    "model": MODEL,
    "enable-kvcache": "true",
    "prefix-caching-hash-algo": "sha256",
    "zmq-endpoint": "",
    "event-flush-interval": "0",
    "kv-connector": "none",
    "enable-auto-tool-choice": "false",
    "max-waiting-queue-length": "16384",
    "max-request-body-size-mb": "32",
}
"""vLLM's defaults that differ from our settings'. Interval 0 publishes events at every step."""
MOST_RANKS = 8
"""Most data parallel ranks that a server simulates."""
KEEP_ALIVE = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
"""Variable of vLLM with whole seconds."""
HTTP = ("http://", "https://")
_EXAMPLE = re.compile(r"(/vllm-workspace/)?examples/[\w./-]+\.jinja")
"""Path of a chat template in vLLM's image."""


class Meaning(NamedTuple):
    """Effect of an option: a text for the help, and a function from the option's text to settings."""

    effect: str
    act: Callable[[str], Values]


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


class KVTransferConfig(Struct, kw_only=True):
    """`--kv-transfer-config`; connectors have further fields."""

    kv_connector: str | None = None
    kv_role: Literal["kv_producer", "kv_consumer", "kv_both"] | None = None
    engine_id: str | None = None
    kv_connector_extra_config: dict[str, Any] = {}


class WeightTransferConfig(Struct, kw_only=True, forbid_unknown_fields=True):
    backend: str = "nccl"


class ProfilerConfig(Struct, kw_only=True):
    profiler: str | None = None


def read_config(option: str, text: str, kind: type[T]) -> T:
    """Parses an option's JSON object. ConfigError, in one line, has the wrong field."""
    try:
        return msgspec.convert(msgspec.json.decode(text), kind, strict=False)
    except msgspec.ValidationError as error:
        unknown = str(error).rpartition("unknown field `")[2].partition("`")[0]
        close = suggestion(unknown, names=kind.__struct_fields__) if "unknown field" in str(error) else ""
        raise ConfigError(f"flag --{option}: {error}{close}") from None
    except (msgspec.DecodeError, RecursionError):
        raise ConfigError(f"flag --{option}: {text[:80]!r} must be a JSON object") from None


def settings_of(line: Line, environ: Mapping[str, str] = os.environ) -> Flags:
    """Converts a vLLM command line; settings on it are stronger than options. May raise ConfigError."""
    values: dict[str, str | list[str]] = {}
    names: dict[str, str] = {}
    given = {name: value for name, value in line.given.items() if value != ""}
    for name in (name for name in MEANINGS if name in given):
        value = given[name]
        if isinstance(value, list):
            found: Values = {name: value}
        else:
            found = MEANINGS[name].act(str(value).lower() if isinstance(value, bool) else value)
        values |= found
        names |= dict.fromkeys(found, name)
    flags = line.flags
    if idle := sorted(name for name in line.given if name not in MEANINGS):
        flags.warnings.append("accepted, changes nothing here: " + ", ".join(f"--{name}" for name in idle))
    flags.warnings += _remarks(given)
    flags.names = {setting: name for setting, name in names.items() if setting not in flags.values}
    flags.values = values | flags.values
    flags.fallbacks = _fallbacks(flags.values, environ)
    return flags


def effects() -> dict[str, str]:
    return {name: meaning.effect for name, meaning in MEANINGS.items()}


def _fallbacks(values: Values, environ: Mapping[str, str]) -> dict[str, str]:
    found, length = dict(DEFAULTS), str(values.get("max-model-len") or "")
    if not length:  # as in a local model's config.json
        known: object = None
        with suppress(OSError, ValueError, AttributeError):
            config = json.loads(Path(str(values.get("model") or "/"), "config.json").read_text("utf-8"))
            key = "max_position_embeddings"
            known = config.get(key) or config.get("text_config", {}).get(key)
        length = str(known if isinstance(known, int) and known > 0 else CONTEXT_LENGTH)
    size = int(str(values.get("block-size", "16")) or 16) or 1
    found["max-model-len"] = length
    found["kv-cache-size"] = str(FULL_PROMPTS * -(-int(length) // size) + 1)
    if seconds := environ.get(KEEP_ALIVE):
        found["keep-alive-timeout"] = f"{seconds}s"
    return found


def _remarks(given: Mapping[str, Value]) -> Iterator[str]:
    ranks, template = str(given.get("data-parallel-size", 1)), str(given.get("chat-template", ""))
    if int(ranks) > MOST_RANKS:
        yield f"--data-parallel-size: {MOST_RANKS} ranks of {ranks} are played"
    if _is_example(template):
        yield f"--chat-template: {template} is not here, the tokenizer's own is used"
    if not str(given.get("otlp-traces-endpoint", HTTP[0])).startswith(HTTP):
        yield "--otlp-traces-endpoint: spans are sent by HTTP only, to http://collector:4318/v1/traces"


def _is_example(path: str) -> bool:
    return bool(_EXAMPLE.fullmatch(path)) and not Path(path).exists()


def _events(text: str) -> Values:
    config = read_config("kv-events-config", text, KVEventsConfig)
    if not config.enable_kv_cache_events or config.publisher == "null":
        return {"zmq-endpoint": ""}
    return {
        "zmq-endpoint": config.endpoint,
        "kv-events-replay-endpoint": config.replay_endpoint or "",
        "kv-events-replay-queue-size": str(config.buffer_steps),
        "kv-events-topic": config.topic,
    }


CONNECTORS = {
    "NixlConnector": "nixl",
    "NixlPullConnector": "nixl",
    "NixlPushConnector": "nixl",
    "ExampleConnector": "example",
    "OffloadingConnector": "offloading",
    "SimpleCPUOffloadConnector": "offloading",
}


def _transfer(text: str) -> Values:
    config = read_config("kv-transfer-config", text, KVTransferConfig)
    inner = config.kv_connector_extra_config.get("connectors")
    several = inner if config.kv_connector == "MultiConnector" and isinstance(inner, list) else []
    names = [config.kv_connector, *(one.get("kv_connector") for one in several if isinstance(one, dict))]
    return {"kv-connector": next((CONNECTORS[name] for name in names if name in CONNECTORS), "")}


def _weight_transfer(text: str) -> Values:
    read_config("weight-transfer-config", text, WeightTransferConfig)
    return {"weight-transfer": "true"}


def _profiling(text: str) -> Values:
    return {"profiling": str(bool(read_config("profiler-config", text, ProfilerConfig).profiler))}


def _to(setting: str, effect: str, words: Mapping[str, str] = MappingProxyType({})) -> Meaning:
    """Returns the effect of an option that sets a setting; `words` maps values with other names."""
    return Meaning(f"Setting `{setting}`: {effect}", lambda text: {setting: words.get(text, text)})


def _same(name: str) -> Meaning:
    row = BY_NAME[name]
    return Meaning(f"Setting `{row.name}`: {row.help}", lambda text: {row.name: text})


SPECIAL = {
    "model": _to("model", "what is played; also given without a name, in front."),
    "max-model-len": Meaning(
        f"Setting `max-model-len`. Without it, or with `auto`, what the model's config.json says, if the "
        f"model is a folder, else {CONTEXT_LENGTH:,} tokens.",
        lambda text: {} if text == "-1" else {"max-model-len": text},
    ),
    "chat-template": Meaning(
        "Setting `chat-template`. One of vLLM's `examples/` that is not here is reported and not used.",
        lambda text: {} if _is_example(text) else {"chat-template": text},
    ),
    "data-parallel-size": Meaning(
        f"Setting `data-parallel-size`: each rank has a port of its own; at most {MOST_RANKS} are played.",
        lambda text: {"data-parallel-size": str(min(int(text), MOST_RANKS))},
    ),
    "data-parallel-rank": Meaning(
        "Setting `data-parallel-rank`: plays this one rank, on its port.",
        lambda text: {"data-parallel-rank": str(min(int(text), MOST_RANKS - 1))},
    ),
    "otlp-traces-endpoint": Meaning(
        "Setting `otlp-traces-endpoint`: spans are sent by HTTP; another address than http:// is reported "
        "and not used.",
        lambda text: {"otlp-traces-endpoint": text} if text.startswith(HTTP) else {},
    ),
    "log-level": _to("log-level", "least severe level that is logged.", {"NOTSET": "debug"}),
    "config": Meaning("YAML file with options, and with settings of Understudy's.", lambda text: {}),
    "language-model-only": Meaning(
        "Setting `multimodal`: off.", lambda text: {"multimodal": "false"} if text == "true" else {}
    ),
    "tokens-only": _to("enable-scale-out", "opens the same routes."),
    "uvicorn-log-level": _to("log-level", "where `log-level` is not given.", {"trace": "debug"}),
    "disable-uvicorn-access-log": _to(
        "access-log",
        "off. It is off here without it, too; --no-disable-uvicorn-access-log turns it on.",
        {"true": "false", "false": "true"},
    ),
    "enable-log-requests": _to("log-http", "logs requests and whole answers."),
    "runner": Meaning(
        "Setting `task`: `pooling` serves the pooling routes.",
        lambda text: {"task": text} if text == "pooling" else {},
    ),
    "convert": Meaning(
        "Setting `task`: `embed` or `classify`.",
        lambda text: {"task": text} if text in ("embed", "classify") else {},
    ),
    "kv-events-config": Meaning(
        "Settings `zmq-endpoint`, `kv-events-topic`, `kv-events-replay-endpoint` and "
        "`kv-events-replay-queue-size`; without it nothing is published. `hwm` and `max_queue_size` are "
        "checked only.",
        _events,
    ),
    "kv-transfer-config": Meaning(
        f"Setting `kv-connector`, for {', '.join(CONNECTORS)}; of a MultiConnector the first of them. With "
        "another one prefill and decode apart are played for whoever asks.",
        _transfer,
    ),
    "kv-offloading-size": Meaning(
        "Setting `kv-connector`: `offloading`, whatever the size.",
        lambda text: {"kv-connector": "offloading"},
    ),
    "profiler-config": Meaning("Setting `profiling`: on with a `profiler`.", _profiling),
    "weight-transfer-config": Meaning(
        "Setting `weight-transfer`: on; every backend is played.", _weight_transfer
    ),
    "shutdown-timeout": Meaning(
        "Setting `graceful-timeout`, in seconds.", lambda text: {"graceful-timeout": f"{text}s"}
    ),
}
MEANINGS: Mapping[str, Meaning] = {
    name: SPECIAL.get(name) or _same(name)
    for names in (SPECIAL.keys() - BY_NAME.keys(), BY_NAME.keys())
    for name in options()
    if name in names
}
"""Option -> effect, in order of application: later effects on the same setting win."""
NO_LONGER = frozenset(name for names in OBSOLETE.values() for name in names)
