"""The rules of the table, tried in a fixed order; the first that does not hold stops the start."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Agreement:
    """A rule between several settings; it is told of the setting `name`."""

    name: str
    text: str
    holds: Callable[[Settings], bool]


AGREEMENTS = (
    Agreement(
        "max-cpu-loras",
        "must not be less than max-loras",
        lambda at: at.lora.max_cpu_loras is None or at.lora.max_cpu_loras >= at.lora.max_loras,
    ),
    Agreement(
        "ssl-certfile",
        "must be given together with ssl-keyfile",
        lambda at: (at.tls.ssl_certfile is None) == (at.tls.ssl_keyfile is None),
    ),
    Agreement(
        "self-signed-certs",
        "must not be given together with ssl-certfile",
        lambda at: not (at.tls.self_signed_certs and at.tls.ssl_certfile),
    ),
    Agreement(
        "dataset-path",
        "must be empty in mode echo",
        lambda at: not (at.dataset.dataset_path and at.reply.mode == "echo"),
    ),
    Agreement(
        "dataset-url",
        "must be given together with dataset-path",
        lambda at: at.dataset.dataset_url is None or bool(at.dataset.dataset_path),
    ),
    Agreement(
        "kv-index-bind",
        "must be empty when this server plays several ranks: they cannot share a port",
        lambda at: not at.kvindex.kv_index_bind or len(at.server.ranks) == 1,
    ),
    Agreement(
        "role",
        "has no ranks: data-parallel-size must be 1",
        lambda at: at.kvindex.role != "indexer" or len(at.server.ranks) == 1,
    ),
    Agreement(
        "port",
        "must leave room for data-parallel-size ports up to 65535",
        lambda at: at.server.port + len(at.server.ranks) <= 65536,
    ),
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
                source = sources.get(row.name, "default")
                raise wrong(row, row.kind.write(value), source, rule.broken_by(value))
    for agreement in AGREEMENTS:
        if not agreement.holds(settings):
            row = BY_NAME[agreement.name]
            value = getattr(getattr(settings, row.group), row.attribute)
            raise wrong(row, row.kind.write(value), sources.get(row.name, "default"), agreement.text)


def wrong(row: Setting, value: Any, source: str, rule: str) -> ConfigError:
    """The one line that tells a user which value is wrong, where it stands and why."""
    shown = MASK if row.secret else _short(value)
    return ConfigError(f"setting {row.name}: {shown} ({source}) {rule}")


def _short(value: Any, longest: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= longest else text[:longest] + "…"
