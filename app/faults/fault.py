"""What was decided for one request that is to go wrong."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from app.http.errors import ApiError
from config.fault_rules import (
    DisconnectRule,
    EmptyRule,
    MalformedChunkRule,
    MissingDoneRule,
    TruncatedJsonRule,
    TruncateRule,
)

Damage = DisconnectRule | TruncateRule | TruncatedJsonRule | MalformedChunkRule | MissingDoneRule | EmptyRule
"""What can be done to the bytes of an answer."""
DAMAGE = (DisconnectRule, TruncateRule, TruncatedJsonRule, MalformedChunkRule, MissingDoneRule, EmptyRule)


class Fault(Struct, frozen=True, kw_only=True):
    """One request's fault; what is not given goes as usual."""

    name: str = ""
    """What a verdict calls it; empty when nothing goes wrong (only `headers` are told)."""
    error: ApiError | None = None
    """Told instead of an answer."""
    headers: Mapping[str, str] = {}
    """Added to the answer."""
    delays: tuple[tuple[int, float], ...] = ()
    """(before token n, seconds), as in `Generation`."""
    damage: Damage | None = None

    def with_headers(self, headers: Mapping[str, str]) -> Fault:
        return replace(self, headers=headers)
