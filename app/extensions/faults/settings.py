"""Settings of injected failures."""

from typing import Annotated, Literal, get_args

from msgspec import Meta

from config.declaration import LIVE, About, Json, Percent, Section, understood_by

FailureType = Literal[
    "rate_limit",
    "invalid_api_key",
    "context_length",
    "server_error",
    "invalid_request",
    "model_not_found",
]
FAILURE_TYPES: tuple[str, ...] = get_args(FailureType)


def check_fault_rules(text: str | None) -> None:
    """Raises ValueError for rules that cannot be read."""
    if text:
        from app.extensions.faults.fault_rules import parse_fault_rules  # few servers have rules

        parse_fault_rules(text)


class FailureSettings(Section, frozen=True, kw_only=True):
    """Injected errors."""

    failure_injection_rate: Annotated[Percent, About(unit="%", live=True)] = 0
    """Share of generation requests that fail."""
    failure_types: Annotated[
        tuple[FailureType, ...],
        Meta(description=f"must only have {', '.join(FAILURE_TYPES)}"),
        LIVE,
    ] = ()
    """Failure types to inject. If this setting is empty, all types are injected."""
    fault_rules: Annotated[
        Json | None,
        LIVE,
        understood_by(check_fault_rules, "must be valid rules (docs/faults.md)"),
    ] = None
    """JSON list of fault rules, which can specify conditions for requests. See docs/faults.md."""
