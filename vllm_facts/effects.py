"""Effects of vLLM's options on settings: of the same name, or special ones."""

import json
from collections.abc import Callable, Mapping

from config.declaration import ConfigError
from config.settings import Table
from config.sources import FlagValues
from config.untrusted import decode_untrusted, python_json
from vllm_facts.checks import SUPERVISOR_PORT, first_rank_with_port
from vllm_facts.combinations import is_missing_file
from vllm_facts.kv_options import (
    ec_transfer_settings,
    kv_events_settings,
    kv_transfer_settings,
    read_config,
)
from vllm_facts.option import Option
from vllm_facts.structured_options import structured_outputs_settings

MAX_RANKS = 8
"""Maximum number of data-parallel ranks that a server simulates."""
HTTP = ("http://", "https://")
SUPERVISOR = "data-parallel-supervisor-port"


def effect_of(
    name: str, value: str | list[str], table: Table, options: Mapping[str, Option]
) -> FlagValues:
    """Returns the settings of `table` that one of the `options` sets.

    Raises:
        ConfigError: The value is wrong.
    """
    if isinstance(value, str) and name in _SPECIAL_EFFECTS:
        try:
            settings = _SPECIAL_EFFECTS[name](value)
        except ValueError as error:
            raise ConfigError(f"flag --{name}: {error}") from None
        # The settings of an extension that was removed have no effect.
        return {name: value for name, value in settings.items() if name in table.by_name}
    option = options[name]
    setting = option.setting or name
    if setting not in table.by_name:  # that of an extension that was removed
        return {}
    if isinstance(value, list):
        return {setting: value}
    setting_value = option.values.get(value, value)
    if setting_value is None:
        return {}
    return {setting: setting_value}


def local_ranks(options: FlagValues) -> FlagValues:
    """Returns the settings of a server that has only the ranks of its node.

    Without `data-parallel-hybrid-lb`, a start rank or a port for each rank, a server balances over
    the ranks of all nodes.
    """
    values: FlagValues = {}
    has_ports = options.get("data-parallel-multi-port-external-lb") == "true"
    start = str(options.get("data-parallel-start-rank", "0"))
    local_size = options.get("data-parallel-size-local")
    if has_ports:
        values["data-parallel-mode"] = "external"
        values[SUPERVISOR] = str(options.get(SUPERVISOR, SUPERVISOR_PORT))
        start = str(first_rank_with_port(options))
    is_hybrid = options.get("data-parallel-hybrid-lb") == "true" or int(start) > 0
    if isinstance(local_size, str) and (has_ports or is_hybrid):
        values["data-parallel-start-rank"] = start
        values["data-parallel-size-local"] = str(min(int(local_size), MAX_RANKS))
    return values


def _nothing(text: str) -> FlagValues:
    return {}


def _chat_template(text: str) -> FlagValues:
    # The templates in vLLM's package belong to models. The tokenizer's template replaces them.
    return {} if is_missing_file(text) else {"chat-template": text}


def _rank_count(text: str) -> FlagValues:
    return {"data-parallel-size": str(min(int(text), MAX_RANKS))}


def _rank(text: str) -> FlagValues:
    return {"data-parallel-rank": str(min(int(text), MAX_RANKS - 1))}


def _traces_endpoint(text: str) -> FlagValues:
    return {"otlp-traces-endpoint": text} if text.startswith(HTTP) else {}


def _profiling(text: str) -> FlagValues:
    return {"profiling": str(bool(read_config(text, dict).get("profiler")))}


def _media_arguments(text: str) -> FlagValues:
    if decode_untrusted(text, decoder=python_json) is None:
        return {}
    read_config(text, dict)
    return {"mm-processor-kwargs": text}


def _template_arguments(text: str) -> FlagValues:
    # vLLM takes any empty value, such as null or a list, for an empty object.
    is_empty = not decode_untrusted(text, decoder=python_json)
    return {} if is_empty else {"default-chat-template-kwargs": text}


def _origins(text: str) -> FlagValues:
    # vLLM accepts items that are no texts. They equal no origin of a request.
    items = decode_untrusted(text, decoder=python_json)
    if isinstance(items, list):
        items = [item for item in items if isinstance(item, str)]
        text = json.dumps(items)
    return {"allowed-origins": text}


def _root_path(text: str) -> FlagValues:
    # The framework that vLLM uses compares other texts with paths, which begin with a slash.
    return {"root-path": text} if text.startswith("/") else {}


def _pooling_task(text: str) -> FlagValues:
    task = read_config(text, dict).get("task")
    return {} if task is None else {"pooling-task": str(task)}


def _shutdown_timeout(text: str) -> FlagValues:
    return {"graceful-timeout": f"{text}s", "shutdown-timeout": f"{text}s"}


def _weight_transfer(text: str) -> FlagValues:
    return {"weight-transfer": str(isinstance(read_config(text, dict), dict))}


_SPECIAL_EFFECTS: Mapping[str, Callable[[str], FlagValues]] = {
    "allowed-origins": _origins,
    "chat-template": _chat_template,
    "config": _nothing,
    "data-parallel-size": _rank_count,
    "data-parallel-rank": _rank,
    "data-parallel-hybrid-lb": _nothing,
    "data-parallel-multi-port-external-lb": _nothing,
    "data-parallel-size-local": _nothing,
    "data-parallel-start-rank": _nothing,
    "data-parallel-supervisor-port": _nothing,
    "default-chat-template-kwargs": _template_arguments,
    "ec-transfer-config": ec_transfer_settings,
    "headless": _nothing,
    "kv-events-config": kv_events_settings,
    "kv-offloading-backend": _nothing,
    "kv-offloading-size": _nothing,  # see `merge_offloading`
    "kv-transfer-config": kv_transfer_settings,
    "mm-processor-kwargs": _media_arguments,
    "otlp-traces-endpoint": _traces_endpoint,
    "pooler-config": _pooling_task,
    "profiler-config": _profiling,
    "root-path": _root_path,
    "shutdown-timeout": _shutdown_timeout,
    "structured-outputs-config": structured_outputs_settings,
    "weight-transfer-config": _weight_transfer,
}
"""Options whose effect is more than the value of one setting; all of these take one value."""
