"""Looks for signs that a client knows about thoughts, for a rehearsal without a deployment."""

from __future__ import annotations

import re
from collections.abc import Iterable

from app.extensions.recording.exchange import Exchange, bytes_of
from workbench.check.findings import Place
from workbench.rehearse.client_code import ClientCode
from workbench.rehearse.traffic import Traffic

FIELDS = (
    *("reasoning", "reasoning_content", "reasoning_effort", "include_reasoning"),
    *("thinking", "enable_thinking", "thinking_token_budget"),
)
"""Fields of requests and answers that only a server with a reasoning parser obeys or sends."""
SENT = re.compile(rf'"(?:{"|".join(FIELDS)})"\s*:'.encode())
RECEIVED = re.compile(rb'"reasoning(?:_content)?"\s*:\s*"')
"""A field of a request, and a thought in an answer."""


def place_of_thoughts(code: ClientCode) -> Place | None:
    """Returns the first place where the client's code names a field of thoughts."""
    for field in FIELDS:
        place = code.place_of_field(field)
        if place is not None:
            return place
    return None


def has_thoughts(recorded: Iterable[Exchange]) -> bool:
    """Returns whether a recorded request asks for thoughts, or an answer has some."""
    for exchange in recorded:
        if SENT.search(bytes_of(exchange.request.body)):
            return True
        if RECEIVED.search(Traffic(exchange).body):
            return True
    return False
