"""What was not used, counted by reason: a loss without a name is a fault that nobody finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

MessageLoss: TypeAlias = Literal[
    "bad_frames",
    "bad_topic",
    "too_large",
    "unreadable",
    "duplicate",
    "gap",
    "too_many_pods",
    "failed",
]
"""Why a whole message was not used.

`bad_frames`: not three frames, or a sequence number that is not 8 bytes. `bad_topic`: names no pod.
`too_large`: more bytes than allowed. `unreadable`: its payload is no batch. `duplicate`: it was applied
before. `gap`: never received (counted in messages), and not replayed. `too_many_pods`: of one pod too many.
`failed`: an error of the index itself, which is logged.
"""

EventLoss: TypeAlias = Literal[
    "malformed_event",
    "unknown_event",
    "token_count",
    "extra_keys_count",
    "unknown_parent",
    "unaligned_parent",
    "unknown_block",
    "too_many_tiers",
]
"""Why one event was not used; besides these there is `bad_<field>` for each field.

`malformed_event`: neither a map nor an array with a name. `unknown_event`: of another name. `token_count`:
not as many tokens as the blocks have. `extra_keys_count`: not one entry for each block. `unknown_parent`:
continues a block that is not known. `unaligned_parent`: continues inside a block of the index whose first
tokens are forgotten. `unknown_block`: offloads or removes blocks (counted in blocks) that are not known.
`too_many_tiers`: names one storage medium too many.
"""

MESSAGE_LOSSES: tuple[MessageLoss, ...] = get_args(MessageLoss)
EVENT_LOSSES: tuple[EventLoss, ...] = get_args(EventLoss)


class Losses:
    """Counts of messages and of events that were not used."""

    def __init__(self) -> None:
        self._messages: Counter[str] = Counter()
        self._events: Counter[str] = Counter()

    def message(self, reason: MessageLoss, count: int = 1) -> None:
        self._messages[reason] += count

    def event(self, reason: str, count: int = 1) -> None:
        """`reason` is an `EventLoss`, or `bad_` and the name of a field."""
        self._events[reason] += count

    @property
    def messages(self) -> Mapping[str, int]:
        return self._messages

    @property
    def events(self) -> Mapping[str, int]:
        return self._events
