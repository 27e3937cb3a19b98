"""Effects of vLLM's options on settings: of the same name, or special ones."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from config.declaration import ConfigError
from config.settings import Table
from config.sources import FlagValues
from config.vllm.kv_options import kv_events_settings, kv_transfer_settings, read_config
from config.vllm.options import OPTIONS

MAX_RANKS = 8
"""Maximum number of data parallel ranks that a server simulates."""
HTTP = ("http://", "https://")
_EXAMPLE = re.compile(r"(/vllm-workspace/)?examples/[\w./-]+\.jinja")
"""Path of a chat template in vLLM's image."""


def effect_of(name: str, value: str | list[str], table: Table) -> FlagValues:
    """Returns the settings of `table` that an option sets.

    Raises:
        ConfigError: The value is wrong.
    """
    if isinstance(value, str) and name in _SPECIAL_EFFECTS:
        try:
            return _SPECIAL_EFFECTS[name](value)
        except ValueError as error:
            raise ConfigError(f"flag --{name}: {error}") from None
    option = OPTIONS[name]
    setting = table.by_name[option.setting or name].name
    if isinstance(value, list):
        return {setting: value}
    setting_value = option.values.get(value, value)
    if setting_value is None:
        return {}
    return {setting: setting_value}


def is_missing_example(path: str) -> bool:
    """Returns True for a chat template of vLLM's examples that does not exist here."""
    return bool(_EXAMPLE.fullmatch(path)) and not Path(path).exists()


def _nothing(text: str) -> FlagValues:
    return {}


def _chat_template(text: str) -> FlagValues:
    return {} if is_missing_example(text) else {"chat-template": text}


def _rank_count(text: str) -> FlagValues:
    return {"data-parallel-size": str(min(int(text), MAX_RANKS))}


def _rank(text: str) -> FlagValues:
    return {"data-parallel-rank": str(min(int(text), MAX_RANKS - 1))}


def _offloading(text: str) -> FlagValues:
    return {"kv-connector": "offloading"}


def _traces_endpoint(text: str) -> FlagValues:
    return {"otlp-traces-endpoint": text} if text.startswith(HTTP) else {}


def _profiling(text: str) -> FlagValues:
    return {"profiling": str(bool(read_config(text, dict).get("profiler")))}


def _graceful_timeout(text: str) -> FlagValues:
    return {"graceful-timeout": f"{text}s"}


def _weight_transfer(text: str) -> FlagValues:
    return {"weight-transfer": str(isinstance(read_config(text, dict), dict))}


_SPECIAL_EFFECTS: Mapping[str, Callable[[str], FlagValues]] = {
    "chat-template": _chat_template,
    "config": _nothing,
    "data-parallel-size": _rank_count,
    "data-parallel-rank": _rank,
    "headless": _nothing,
    "kv-events-config": kv_events_settings,
    "kv-offloading-size": _offloading,
    "kv-transfer-config": kv_transfer_settings,
    "otlp-traces-endpoint": _traces_endpoint,
    "profiler-config": _profiling,
    "shutdown-timeout": _graceful_timeout,
    "weight-transfer-config": _weight_transfer,
}
"""Options whose effect is more than the value of one setting; all of these take one value."""
