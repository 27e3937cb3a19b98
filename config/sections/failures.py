"""Errors on purpose."""

from dataclasses import dataclass

from config.fault_rules import parse_fault_rules
from config.fields import setting
from config.kinds import Json
from config.rules import between, items_among, understood_by

FAILURE_TYPES = (
    "rate_limit",
    "invalid_api_key",
    "context_length",
    "server_error",
    "invalid_request",
    "model_not_found",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSettings:
    """Errors on purpose."""

    failure_injection_rate: int = setting(
        0, unit="%", live=True, help="Share of generating requests that fail.", rule=between(0, 100)
    )
    failure_types: tuple[str, ...] = setting(
        (), live=True, help="How they fail; every way when empty.", rule=items_among(FAILURE_TYPES)
    )
    fault_rules: Json = setting(
        None,
        live=True,
        help="JSON list of scripted faults, each with the requests that it strikes; see docs/faults.md.",
        rule=understood_by(parse_fault_rules, "must be rules as they are described there"),
    )
