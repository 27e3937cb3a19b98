"""vLLM's `serve` command line: expanded to plain words, read, and turned into settings.

options.json has the facts of all options of vLLM 0.32, by group, from vLLM's parser.

An option with the name of a setting sets that setting, `SPECIAL` has further effects, and all other
options are ignored. Settings of Understudy's own are flags, too.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from config.command_line import (
    find_settings_kind,
    flags_of,
    help_flag,
    help_text,
    setting_flags,
)
from config.declaration import COMMAND, ConfigError, UsageError, suggestion
from config.flag_words import Flag, read_words
from config.settings import BY_NAME, table_of
from config.sources import Flags, FlagValues
from config.vllm.checks import check_load_balancing, check_values, is_headless, unknown_name
from config.vllm.option import Option
from config.yaml_file import parse_yaml

FACTS = Path(__file__).with_name("options.json")
GROUPS = msgspec.json.decode(FACTS.read_bytes(), type=dict[str, dict[str, Option]])
OBSOLETE = GROUPS.pop("obsolete")
"""Options of earlier versions of vLLM, accepted for old command lines."""
OPTIONS = {name: option for group in GROUPS.values() for name, option in group.items()}

T = TypeVar("T")
JsonObject = dict[str, object]

OURS = "vllm "
"""Prefix of vLLM's options among the results; settings have no prefix."""
ABOUT = f"""\
usage: {COMMAND} serve [MODEL] [--option value ...]

MODEL is the name of the model that is played.
Takes the command line of `vllm serve` as it is. What each option does here is in docs/serve.md; a setting of
Understudy's own ({COMMAND} --help) is taken, too, unless vLLM has an option of that name.
"""
MODEL = "Qwen/Qwen3-0.6B"
CONTEXT_LENGTH = 32_768
"""Context length, in tokens, of a model without a local config.json; common among current models.
"""
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
    "drain-duration": "0s",
}
"""vLLM's defaults that differ from our settings'. Interval 0 publishes events at every step."""
MOST_RANKS = 8
"""Most data parallel ranks that a server simulates."""
PORT = "8000"
UNREAD = frozenset({"PORT"})
"""Variables of settings that vLLM does not read: its port is 8000 unless --port is given."""
KEEP_ALIVE = "VLLM_HTTP_TIMEOUT_KEEP_ALIVE"
"""Variable of vLLM with whole seconds."""
HTTP = ("http://", "https://")
CONFIG = "--config"
LEVEL = Flag(name=OURS + "optimization-level", forms=("-O",))
_EXAMPLE = re.compile(r"(/vllm-workspace/)?examples/[\w./-]+\.jinja")
"""Path of a chat template in vLLM's image."""


def read(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[FlagValues, Flags]:
    """Returns vLLM's options, with the positional model as `model`, and flags of settings.

    ConfigError for words that vLLM's parser would refuse. The file of `--config` is weaker than the
    words.
    """
    if sum(word.partition("=")[0] == CONFIG for word in argv) > 1:
        raise UsageError(f"flag {CONFIG}: only one file can be given")
    kind = find_settings_kind(argv, environ)
    ours = (
        flag for name, facts in (OPTIONS | OBSOLETE).items() for flag in _forms(name, facts, False)
    )
    flags = [*setting_flags(table_of(kind)), *ours, LEVEL]
    results, models = read_words(_without_dots(argv), flags, shortened=True)
    if (path := results.get(OURS + "config")) is not None:
        results = (
            read_words(_without_dots(_words_of(str(path))), flags, shortened=True)[0] | results
        )
    given = {
        name.removeprefix(OURS): results.pop(name)
        for name in list(results)
        if name.startswith(OURS)
    }
    if len(models) > 1:
        raise UsageError(f"unexpected argument {models[1]!r}: settings are given as --name value")
    return given | dict(zip(("model",), models, strict=False)), flags_of(results, kind)


def usage() -> str:
    by_group = {
        group.capitalize(): [
            flag for name, facts in members.items() for flag in _forms(name, facts)
        ]
        for group, members in GROUPS.items()
    }
    return ABOUT + help_text(by_group | {"Others": [help_flag()]})


def _forms(name: str, facts: Option, with_help: bool = True) -> Iterator[Flag]:
    switch = facts.kind == "switch"
    metavar = "" if switch else "VALUE" if facts.choices else facts.kind.partition(" ")[0].upper()
    yield Flag(
        name=OURS + name,
        forms=(f"--{name}", *facts.also),
        takes="nothing" if switch else "some" if facts.many else "one",
        read=facts.read,
        metavar=f"{metavar} [{metavar} ...]" if facts.many else metavar,
        help=effect(name) or "Accepted; changes nothing." if with_help else "",
    )
    if facts.off:
        yield Flag(name=OURS + name, forms=(f"--no-{name}",), takes="nothing", const="false")


def names_of(name: str) -> Iterator[str]:
    for flag in _forms(name, OPTIONS[name], with_help=False):
        yield from flag.forms


def _words_of(path: str) -> Iterator[str]:
    document = parse_yaml(path)
    if not isinstance(document, Mapping):
        raise UsageError(f"YAML file {path}: must be a mapping of options to values")
    for key, value in document.items():
        flag = f"--{key}"
        if isinstance(value, bool):
            option = OPTIONS.get(str(key).replace("_", "-"))
            if (
                value or option is None or option.off
            ):  # a switch without an off form is off by default
                yield flag if value else f"--no-{key}"
        elif isinstance(value, list) and not any(isinstance(item, list | dict) for item in value):
            yield from (flag, *map(str, value)) if value else ()
        elif isinstance(value, list | dict):
            yield from (flag, json.dumps(value))
        elif value is not None:
            yield f"{flag}={value}"


def _without_dots(words: Iterable[str]) -> Iterator[str]:
    """Converts `--a.b 1 --a.c+ x,y` to `--a {"b": 1, "c": ["x", "y"]}`, behind all other words."""
    objects: dict[str, JsonObject] = {}
    rest = iter(words)
    for word in rest:
        name, equals, text = word.partition("=")
        if not name.startswith("-") or "." not in name or name[1:2].isdigit() or name[1:2] == ".":
            yield word
            continue
        value = text if equals else next(rest, None)
        if value is None:
            raise UsageError(f"flag {name} needs a value")
        flag, *keys = name.removesuffix("+").split(".")
        flag = flag.replace("_", "-")
        found: object = value
        if name.endswith("+"):
            found = value.split(",")
        else:
            with suppress(ValueError, RecursionError):  # a text that is no JSON stays as it is
                found = json.loads(value)
        for key in reversed(keys):
            found = {key: found}
        assert isinstance(found, dict)
        _merge(objects.setdefault(flag, {}), found)
    for flag, made in objects.items():
        yield from (flag, json.dumps(made))


def _merge(into: JsonObject, more: JsonObject) -> None:
    for key, value in more.items():
        known = into.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            _merge(known, value)
        elif isinstance(known, list) and isinstance(value, list):
            known += value
        else:
            into[key] = value


def settings_of(argv: Sequence[str], environ: Mapping[str, str]) -> Flags:
    """Converts a vLLM command line; settings on it are stronger than options.

    May raise ConfigError.
    """
    named, flags = read(argv, environ)
    given = {name: value for name, value in named.items() if value != ""}
    check_values(given, OPTIONS)
    flags.headless = is_headless(given)
    flags.unread = UNREAD
    check_load_balancing(given, flags.headless)
    values: FlagValues = {}
    for name in (name for name in MEANINGS if name in given):
        found = _effect_of(name, given[name])
        values |= found
        flags.names |= {setting: name for setting in found if setting not in flags.values}
    if idle := sorted(name for name in named if name not in MEANINGS):
        flags.warnings.append(
            "accepted, changes nothing here: " + ", ".join(f"--{name}" for name in idle)
        )
    flags.warnings += _remarks(given)
    flags.values = values | flags.values
    flags.fallbacks = _fallbacks(flags.values, environ)
    return flags


def _effect_of(name: str, value: str | list[str]) -> FlagValues:
    """Returns the settings that an option sets."""
    facts = OPTIONS[name]
    if isinstance(value, str) and name in ACTS:
        try:
            return ACTS[name](value)
        except ValueError as error:
            raise ConfigError(f"flag --{name}: {error}") from None
    taken = facts.values.get(value, value) if isinstance(value, str) else value
    return {} if taken is None else {BY_NAME[facts.setting or name].name: taken}


def _fallbacks(values: FlagValues, environ: Mapping[str, str]) -> dict[str, str]:
    found, length = dict(DEFAULTS), str(values.get("max-model-len") or "")
    if not length:  # as in a local model's config.json
        known: object = None
        with suppress(OSError, ValueError, AttributeError):
            config = json.loads(
                Path(str(values.get("model") or "/"), "config.json").read_text("utf-8")
            )
            key = "max_position_embeddings"
            known = config.get(key) or config.get("text_config", {}).get(key)
        length = str(known if isinstance(known, int) and known > 0 else CONTEXT_LENGTH)
    size = int(str(values.get("block-size", "16")) or 16) or 1
    found["max-model-len"] = length
    found["port"] = PORT
    found["kv-cache-size"] = str(FULL_PROMPTS * -(-int(length) // size) + 1)
    if seconds := environ.get(KEEP_ALIVE):
        found["keep-alive-timeout"] = f"{seconds}s"
    return found


def _remarks(given: FlagValues) -> Iterator[str]:
    ranks, template = str(given.get("data-parallel-size", 1)), str(given.get("chat-template", ""))
    if int(ranks) > MOST_RANKS:
        yield f"--data-parallel-size: {MOST_RANKS} ranks of {ranks} are played"
    if _is_example(template):
        yield f"--chat-template: {template} is not here, the tokenizer's own is used"
    if not str(given.get("otlp-traces-endpoint", HTTP[0])).startswith(HTTP):
        yield "--otlp-traces-endpoint: spans are sent by HTTP only, to http://collector:4318/v1/traces"


def _is_example(path: str) -> bool:
    return bool(_EXAMPLE.fullmatch(path)) and not Path(path).exists()


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
    kv_rank: int | None = None
    kv_parallel_size: int = 1
    kv_ip: str = "127.0.0.1"
    kv_port: int = 14579
    kv_buffer_device: str = "cuda"
    kv_buffer_size: float = 1e9
    """Bytes."""
    engine_id: str | None = None
    enable_permute_local_kv: bool = False
    kv_load_failure_policy: Literal["recompute", "fail"] = "fail"


def read_config(text: str, kind: type[T]) -> T:
    """Parses an option's JSON object. ValueError has the wrong field."""
    try:
        return msgspec.convert(msgspec.json.decode(text), kind, strict=False)
    except msgspec.ValidationError as error:
        unknown = str(error).partition("unknown field `")[2].partition("`")[0]
        raise ValueError(
            f"{error}{suggestion(unknown, names=getattr(kind, '__struct_fields__', ()))}"
        ) from None
    except (msgspec.DecodeError, RecursionError):
        raise ValueError(f"{text[:80]!r} must be a JSON object") from None


def _events(text: str) -> FlagValues:
    config = read_config(text, KVEventsConfig)
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
    "DecodeBenchConnector": "",
    "ExampleHiddenStatesConnector": "",
    "FlexKVConnectorV1": "",
    "HF3FSKVConnector": "",
    "LMCacheConnectorV1": "",
    "LMCacheMPConnector": "",
    "MoRIIOConnector": "",
    "MooncakeConnector": "",
    "MooncakeStoreConnector": "",
    "MultiConnector": "",
}
"""vLLM's connectors -> value of the setting `kv-connector`."""


def _transfer(text: str) -> FlagValues:
    config = read_config(text, KVTransferConfig)
    connectors = [config]
    if config.kv_connector == "MultiConnector":
        inner = config.kv_connector_extra_config.get("connectors")
        objects = (
            [item for item in inner if isinstance(item, dict)] if isinstance(inner, list) else []
        )
        connectors += [read_config(json.dumps(item), KVTransferConfig) for item in objects]
    for connector in connectors:
        _check_connector(connector)
    played = (CONNECTORS.get(connector.kv_connector or "", "") for connector in connectors)
    return {"kv-connector": next(filter(None, played), "")}


def _check_connector(config: KVTransferConfig) -> None:
    """Raises ValueError for a connector that vLLM does not have, or one without a role."""
    name = config.kv_connector
    if name is None:
        return
    if name not in CONNECTORS and config.kv_connector_module_path is None:
        raise ValueError(f"kv_connector {name!r} {unknown_name(name, tuple(sorted(CONNECTORS)))}")
    if config.kv_role is None:
        raise ValueError("kv_role is missing: it must be kv_producer, kv_consumer or kv_both")


ACTS: Mapping[str, Callable[[str], FlagValues]] = {
    "chat-template": lambda text: {} if _is_example(text) else {"chat-template": text},
    "config": lambda text: {},
    "data-parallel-size": lambda text: {"data-parallel-size": str(min(int(text), MOST_RANKS))},
    "data-parallel-rank": lambda text: {"data-parallel-rank": str(min(int(text), MOST_RANKS - 1))},
    "headless": lambda text: {},
    "kv-events-config": _events,
    "kv-offloading-size": lambda text: {"kv-connector": "offloading"},
    "kv-transfer-config": _transfer,
    "otlp-traces-endpoint": lambda text: (
        {"otlp-traces-endpoint": text} if text.startswith(HTTP) else {}
    ),
    "profiler-config": lambda text: {
        "profiling": str(bool(read_config(text, dict).get("profiler")))
    },
    "shutdown-timeout": lambda text: {"graceful-timeout": f"{text}s"},
    "weight-transfer-config": lambda text: {
        "weight-transfer": str(isinstance(read_config(text, dict), dict))
    },
}
"""Options whose effect is more than the value of one setting."""
MEANINGS = (*(name for name, facts in OPTIONS.items() if facts.effect and name not in BY_NAME),) + (
    *(name for name in OPTIONS if name in BY_NAME),
)
"""Options with an effect, in order of application: later effects on the same setting win."""


def effect(name: str) -> str:
    """Returns the effect of an option, in a sentence; empty without one."""
    row, known = BY_NAME.get(name), OPTIONS.get(name)
    return (
        known.effect
        if known and known.effect
        else f"Setting `{row.name}`: {row.help}"
        if row
        else ""
    )
