"""The fault of one request: a failure that is injected into its answer."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from app.core.server.http.errors import ApiError


class Fault(Struct, frozen=True, kw_only=True):
    """The fault of one request; defaults change nothing."""

    name: str = ""
    """Name in the audit; empty when the fault only adds `headers`."""
    error: ApiError | None = None
    """Sent instead of an answer."""
    headers: Mapping[str, str] = {}
    """Added to the answer."""
    delays: tuple[tuple[int, float], ...] = ()
    """Pairs of token number and the wait before it in seconds, as in an engine request."""
    damage: Any = None
    """A rule that damages the bytes of the answer; None leaves them whole."""
