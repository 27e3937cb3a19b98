"""What others may learn of a sequence, without the engine knowing who they are (traces, rate limits)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from msgspec import Struct

log = logging.getLogger(__name__)


class Outcome(Struct, frozen=True, kw_only=True, gc=False):
    """How a sequence went.

    Moments are seconds of the monotonic clock, None where it did not come to that: without `scheduled_s` it
    never got a slot, without `first_token_s` it ended before its first token.
    """

    reason: str
    """`stop`, `length`, `abort` (the client is gone) or `error`."""
    scheduled_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    ended_s: float
    cached_tokens: int
    tokens: int
    """Generated, until the end."""


Watch = Callable[[Outcome], None]
"""Called once, when a sequence is over, by whoever ended it, perhaps the hub: it must not wait."""


def notify(watches: Iterable[Watch], outcome: Outcome) -> None:
    """Call all of them. One that fails keeps nothing else from being called, or done."""
    for watch in watches:
        try:
            watch(outcome)
        except Exception:
            log.exception("an observer of a sequence failed")
