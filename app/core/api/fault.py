"""The port for injected failures: which requests fail, and who decides.

The extension `faults` implements `FaultInjection`. Without it, no request has a fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from app.core.server.http.context import RequestContext
    from app.core.server.http.response import Response


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

    def damage(self, response: Response, context: RequestContext) -> Response:
        """Returns `response` with the headers and the damage of the request's fault."""
        return response
