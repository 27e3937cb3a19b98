"""Effects of vLLM's options: the settings that each option sets, and vLLM's defaults.

An option with the name of a setting sets that setting. `_SPECIAL` and `_OTHERS` have further effects. All
other options are ignored.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from config.declaration import ConfigError
from config.settings import BY_NAME
from config.sources import Flags
from config.validation import suggestion
from config.vllm.command_line import OBSOLETE, Line, Value
from config.vllm.options import options

T = TypeVar("T", bound=Struct)
Given = Mapping[str, Value]
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
_EXAMPLE = re.compile(r"(/vllm-workspace/)?examples/[\w./-]+\.jinja")
"""Path of a chat template in vLLM's image."""


class Meaning(Struct, frozen=True):
    """Effect of an option: a text for the help, and the settings."""

    effect: str
    act: Callable[[Given], Values]
    """Given the whole command line, returns setting name -> text."""


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
    """`--profiler-config`; only its presence counts."""

    profiler: str | None = None


def read_config(option: str, given: Given, kind: type[T]) -> T:
    """Parses an option's JSON object. ConfigError, in one line, has the wrong field."""
    text = str(given[option])
    try:
        return msgspec.convert(msgspec.json.decode(text), kind, strict=False)
    except msgspec.ValidationError as error:
        fields = kind.__struct_fields__
        unknown = str(error).rpartition("unknown field `")[2].partition("`")[0]
        close = suggestion(unknown, names=fields) if "unknown field" in str(error) else ""
        raise ConfigError(f"flag --{option}: {error}{close}") from None
    except (msgspec.DecodeError, RecursionError):
        raise ConfigError(f"flag --{option}: {text[:80]!r} must be a JSON object") from None


def settings_of(line: Line, environ: Mapping[str, str] = os.environ) -> Flags:
    """Converts a vLLM command line to settings. ConfigError for a value that vLLM would refuse.

    A setting on the command line is stronger than an option with an effect on this setting.
    """
    values: dict[str, str | list[str]] = {}
    names: dict[str, str] = {}
    for name in (name for name in MEANINGS if _is_given(line.given, name)):
        found = MEANINGS[name].act(line.given)
        values |= found
        names |= dict.fromkeys(found, name)
    flags = line.flags
    idle = sorted(name for name in line.given if name not in MEANINGS)
    if idle:
        flags.warnings.append("accepted, changes nothing here: " + ", ".join(f"--{name}" for name in idle))
    flags.warnings += _remarks(line.given)
    flags.names = {setting: name for setting, name in names.items() if setting not in flags.values}
    flags.values = values | flags.values
    flags.fallbacks = _fallbacks(flags.values, environ)
    return flags


def effects() -> dict[str, str]:
    """Returns option -> effect; all other options are ignored."""
    return {name: meaning.effect for name, meaning in MEANINGS.items()}


def _is_given(given: Given, name: str) -> bool:
    return name in given and given[name] != ""


def _fallbacks(values: Values, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns vLLM's defaults, and sizes of context and cache for the simulated model."""
    found, length = dict(DEFAULTS), str(values.get("max-model-len") or "")
    folder = str(values.get("model", ""))
    if not length:  # as in a local model's config.json
        known: object = None
        with suppress(OSError, ValueError, AttributeError):
            config = json.loads(Path(folder, "config.json").read_text("utf-8")) if folder else {}
            known = config.get("max_position_embeddings") or config.get("text_config", {}).get(
                "max_position_embeddings"
            )
        length = str(known if isinstance(known, int) and known > 0 else CONTEXT_LENGTH)
    size = int(str(values.get("block-size", "16")) or 16) or 1
    found["max-model-len"] = length
    found["kv-cache-size"] = str(FULL_PROMPTS * -(-int(length) // size) + 1)
    if seconds := environ.get(KEEP_ALIVE):
        found["keep-alive-timeout"] = f"{seconds}s"
    return found


def _remarks(given: Given) -> list[str]:
    """Returns remarks on options with less effect than a user may expect."""
    remarks = []
    if _ranks(given) > MOST_RANKS:
        remarks.append(f"--data-parallel-size: {MOST_RANKS} ranks of {_ranks(given)} are played")
    if _is_example(given):
        remarks.append(f"--chat-template: {given['chat-template']} is not here, the tokenizer's own is used")
    if _is_given(given, "otlp-traces-endpoint") and not _traces(given):
        remarks.append(
            "--otlp-traces-endpoint: spans are sent by HTTP only, to http://collector:4318/v1/traces"
        )
    return remarks


def _same(option: str, effect: str = "") -> Meaning:
    """Effect of an option that sets the setting of the same name to the same value."""

    row = BY_NAME[option]

    def act(given: Given) -> Values:
        value = given[option]
        return {row.name: "true" if value is True else "false" if value is False else value}

    return Meaning(effect or f"Setting `{row.name}`: {row.help}", act)


def _as(option: str, setting: str, effect: str, words: Mapping[str, str] | None = None) -> Meaning:
    """Effect of an option that sets a setting of another name; `words` maps values with other names."""

    def act(given: Given) -> Values:
        text = str(given[option]).lower() if isinstance(given[option], bool) else str(given[option])
        return {setting: (words or {}).get(text, text)}

    return Meaning(f"Setting `{setting}`: {effect}", act)


def _without(word: str, option: str, given: Given) -> Values:
    """Sets the setting of the same name, unless the value is `word`."""
    return {} if given[option] == word else {option: str(given[option])}


def _ranks(given: Given) -> int:
    return int(str(given.get("data-parallel-size", "1")))


def _task(given: Given) -> Values:
    """Derives the setting `task`, vLLM's former option, from `--runner` and `--convert`."""
    convert = str(given.get("convert", "auto"))
    if convert in ("embed", "classify"):
        return {"task": convert}
    return {"task": "pooling"} if given.get("runner") == "pooling" else {}


def _is_example(given: Given) -> bool:
    path = str(given.get("chat-template", ""))
    return bool(_EXAMPLE.fullmatch(path)) and not Path(path).exists()


def _traces(given: Given) -> Values:
    url = str(given["otlp-traces-endpoint"])
    return {"otlp-traces-endpoint": url} if url.startswith(("http://", "https://")) else {}


def _events(given: Given) -> Values:
    config = read_config("kv-events-config", given, KVEventsConfig)
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
"""vLLM's connector -> value of the setting kv-connector."""


def _transfer(given: Given) -> Values:
    config = read_config("kv-transfer-config", given, KVTransferConfig)
    inner = config.kv_connector_extra_config.get("connectors")
    several = inner if config.kv_connector == "MultiConnector" and isinstance(inner, list) else []
    names = [config.kv_connector, *(one.get("kv_connector") for one in several if isinstance(one, dict))]
    return {"kv-connector": next((CONNECTORS[name] for name in names if name in CONNECTORS), "")}


def _weight_transfer(given: Given) -> Values:
    read_config("weight-transfer-config", given, WeightTransferConfig)
    return {"weight-transfer": "true"}


_INVERSE = {"true": "false", "false": "true"}
_SPECIAL = {
    "model": _same("model", "Setting `model`: what is played; also given without a name, in front."),
    "max-model-len": Meaning(
        f"Setting `max-model-len`. Without it, or with `auto`, what the model's config.json says, if the "
        f"model is a folder, else {CONTEXT_LENGTH:,} tokens.",
        lambda given: _without("-1", "max-model-len", given),
    ),
    "chat-template": Meaning(
        "Setting `chat-template`. One of vLLM's `examples/` that is not here is reported and not used.",
        lambda given: {} if _is_example(given) else {"chat-template": str(given["chat-template"])},
    ),
    "data-parallel-size": Meaning(
        f"Setting `data-parallel-size`: each rank has a port of its own; at most {MOST_RANKS} are played.",
        lambda given: {"data-parallel-size": str(min(_ranks(given), MOST_RANKS))},
    ),
    "data-parallel-rank": Meaning("Setting `data-parallel-rank`: plays this one rank, on its port.",
        lambda given: {"data-parallel-rank": str(min(int(str(given["data-parallel-rank"])), MOST_RANKS - 1))},
    ),
    "otlp-traces-endpoint": Meaning(
        "Setting `otlp-traces-endpoint`: spans are sent by HTTP; another address than http:// is reported "
        "and not used.",
        _traces,
    ),
    "log-level": _as("log-level", "log-level", "least severe level that is logged.",
                     {"NOTSET": "debug"}),
}  # fmt: skip
_OTHERS = {
    "config": Meaning("YAML file with options, and with settings of Understudy's.", lambda given: {}),
    "language-model-only": Meaning(
        "Setting `multimodal`: off.",
        lambda given: {"multimodal": "false"} if given["language-model-only"] is True else {},
    ),
    "tokens-only": _as("tokens-only", "enable-scale-out", "opens the same routes."),
    "uvicorn-log-level": _as(
        "uvicorn-log-level", "log-level", "where `log-level` is not given.", {"trace": "debug"}
    ),
    "disable-uvicorn-access-log": _as(
        "disable-uvicorn-access-log",
        "access-log",
        "off. It is off here without it, too; --no-disable-uvicorn-access-log turns it on.",
        _INVERSE,
    ),
    "enable-log-requests": _as("enable-log-requests", "log-http", "logs requests and whole answers."),
    "runner": Meaning("Setting `task`: `pooling` serves the pooling routes.", _task),
    "convert": Meaning("Setting `task`: `embed` or `classify`.", _task),
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
        lambda given: {"kv-connector": "offloading"},
    ),
    "profiler-config": Meaning(
        "Setting `profiling`: on with a `profiler`.",
        lambda given: {
            "profiling": str(bool(read_config("profiler-config", given, ProfilerConfig).profiler))
        },
    ),
    "weight-transfer-config": Meaning(
        "Setting `weight-transfer`: on; every backend is played.", _weight_transfer
    ),
    "shutdown-timeout": Meaning(
        "Setting `graceful-timeout`, in seconds.",
        lambda given: {"graceful-timeout": f"{given['shutdown-timeout']}s"},
    ),
}
MEANINGS: Mapping[str, Meaning] = (
    {name: _OTHERS[name] for name in options() if name in _OTHERS}
    | {name: _same(name) for name in options() if name in BY_NAME}
    | _SPECIAL
)
"""Option -> effect, in order of application: later effects on the same setting win."""
NO_LONGER = frozenset(name for names in OBSOLETE.values() for name in names)
