"""The port for injected failures: what happens to one request, and who decides.

The extension `faults` implements `FaultInjection`. Without it, no request has a fault.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from app.core.server.http.errors import ApiError

if TYPE_CHECKING:
    from app.core.server.http.context import RequestContext
    from app.core.server.http.response import Response


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


class RequestFacts(Struct, frozen=True):
    """The parts of a request that rules compare. `tokens` is an estimate of its use."""

    path: str
    model: str | None
    header: Callable[[str], str | None]
    client: Callable[[], str]
    tokens: float = 0.0


class FaultInjection:
    """Decides about the faults of requests, and carries them out. This class injects none."""

    def inject(self, context: RequestContext, model: str | None) -> None:
        """Decides about a decoded request for generation, and keeps its fault in the context.

        Raises:
            ApiError: an error replaces the answer.
        """

    def damage(self, response: Response, fault: Fault | None, context: RequestContext) -> Response:
        """Returns `response` with the headers and the damage of a fault."""
        return response
