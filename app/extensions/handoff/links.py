"""When the blocks of a prompt arrive from another engine: start with `Links`.

The server (`HandoffEngine`) and `simulate` decide by this code.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf

from app.core.engine.batch import SequenceState

MAX_LINKS = 1_000
"""Links that are remembered before those without a transfer under way are forgotten."""


class Links:
    """The links between engines. The transfers of a link wait for each other.

    Times are in seconds.
    """

    def __init__(self) -> None:
        self._sent_s: dict[Hashable, float] = {}
        """Link -> the time at which it will have sent all bytes so far."""

    def begin(
        self, link: Hashable, now_s: float, *, sending_s: float, latency_s: float = 0.0
    ) -> float:
        """Begins a transfer that occupies its link for `sending_s`; returns the time of its end.

        The latency delays no other transfer.
        """
        if len(self._sent_s) >= MAX_LINKS:
            self._forget_idle(now_s)
        sent_s = max(now_s, self._sent_s.get(link, -inf)) + sending_s
        self._sent_s[link] = sent_s
        return sent_s + latency_s

    def _forget_idle(self, now_s: float) -> None:
        self._sent_s = {link: sent_s for link, sent_s in self._sent_s.items() if sent_s > now_s}


def transferred_blocks(sequence: SequenceState, block_size: int) -> int:
    """Returns how many of a prompt's blocks another engine sends: those that are not cached here.

    The last block is sent whole, also if the prompt ends within it.
    """
    return sequence.held - sequence.computed // block_size
