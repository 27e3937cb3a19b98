"""The rules of the table, tried in a fixed order; the first that does not hold stops the start."""

from collections.abc import Mapping
from typing import Any

from config.errors import ConfigError
from config.fields import MASK, Setting
from config.settings import Settings
from config.table import BY_NAME, TABLE

FIRST = (
    "model",
    "mode",
    "port",
    "inter-token-latency",
    "inter-token-latency-std-dev",
    "time-to-first-token",
    "time-to-first-token-std-dev",
    "prefill-overhead",
    "prefill-time-per-token",
    "prefill-time-std-dev",
    "time-factor-under-load",
    "max-model-len",
    "max-num-seqs",
    "max-waiting-queue-length",
)
"""The reference simulator's order (specification, section 1.3); all others follow in the table's order."""

ORDER: tuple[Setting, ...] = (
    *(BY_NAME[name] for name in FIRST),
    *(row for row in TABLE if row.name not in FIRST),
)


def validate(settings: Settings, sources: Mapping[str, str]) -> None:
    """Raise ConfigError for the first setting that breaks a rule; `sources` says where a value came from."""
    for row in ORDER:
        room = getattr(settings, row.group)
        value = getattr(room, row.attribute)
        if value is None:
            continue
        for rule in row.rules:
            if not rule.holds(value, room):
                raise wrong(row, row.kind.write(value), sources.get(row.name, "default"), rule.text)


def wrong(row: Setting, value: Any, source: str, rule: str) -> ConfigError:
    """The one line that tells a user which value is wrong, where it stands and why."""
    shown = MASK if row.secret else _short(value)
    return ConfigError(f"setting {row.name}: {shown} ({source}) {rule}")


def _short(value: Any, longest: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= longest else text[:longest] + "…"
