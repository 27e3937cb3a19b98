"""Counters of speculative decoding."""

from __future__ import annotations

from collections import Counter

from app.core.base.metrics.families import EngineFamilies
from app.core.base.metrics.optional_families import drafts


class DraftCounters:
    """Counts verified drafts of up to `positions` tokens."""

    def __init__(self, families: EngineFamilies, positions: int) -> None:
        *totals, by_position = drafts(positions)
        families.add((*totals, by_position))
        self._totals = [families.counter(spec.name) for spec in totals]
        self._by_position = [
            families.counter(by_position.name, position=str(position))
            for position in range(positions)
        ]

    def count(self, tokens: int, accepted: Counter[int], drafts: int = 1) -> None:
        """Counts drafts with `tokens` tokens in total, and `accepted` ones by position."""
        for counter, amount in zip(self._totals, (drafts, tokens, accepted.total()), strict=True):
            counter.value += amount
        for position, amount in accepted.items():
            self._by_position[position].value += amount
