"""Families that are there where requests share steps: of speculative decoding, as in vLLM (vllm-api.md 11.3),
and of our own what was too late for its step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.metrics.families import Spec, families_of
from app.metrics.instruments import Counter, Family, Instrument

DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
LATE = "understudy_late_requests_total"
LATE_SECONDS = "understudy_late_seconds_total"


class Lateness:
    """Counts requests that reached the engine when its scheduler should have seen them already."""

    def __init__(self, server: Mapping[str, str], now: Callable[[], float]) -> None:
        """`server` and `now` as for `EngineFamilies`."""
        table = (
            Spec(LATE, "counter", "Requests that the scheduler saw too late, as their reading took long."),
            Spec(LATE_SECONDS, "counter", "How late they were, all together."),
        )
        self._families = families_of(table, server, 0, now)
        [self._late], [self._seconds] = (_counters(self._families[name]) for name in (LATE, LATE_SECONDS))

    def late(self, seconds: float) -> None:
        """A request was so late."""
        self._late.value += 1
        self._seconds.value += seconds

    def render(self) -> str:
        """Their text."""
        return "".join(family.render() for family in self._families.values())


class Drafts:
    """Counts drafts and how many of their tokens were right."""

    def __init__(self, server: Mapping[str, str], positions: int, now: Callable[[], float]) -> None:
        """`server` and `now` as for `EngineFamilies`; a draft has so many tokens at the most."""
        places = {"position": tuple(map(str, range(positions)))}
        table = (
            Spec(DRAFTS, "counter", "Drafts that were checked."),
            Spec(DRAFTED, "counter", "Tokens of drafts that were checked."),
            Spec(ACCEPTED, "counter", "Tokens of drafts that were right."),
            Spec(BY_POSITION, "counter", "Tokens of drafts that were right, by their place.", extra=places),
        )
        self._families = families_of(table, server, 0, now)
        [self._drafts], [self._drafted], [self._accepted] = (
            _counters(self._families[name]) for name in (DRAFTS, DRAFTED, ACCEPTED)
        )
        self._by_position = _counters(self._families[BY_POSITION])

    def checked(self, tokens: int, accepted: int) -> None:
        """A draft of so many tokens, of which the first `accepted` were right."""
        self._drafts.value += 1
        self._drafted.value += tokens
        self._accepted.value += accepted
        for counter in self._by_position[:accepted]:
            counter.value += 1

    def render(self) -> str:
        """Their text."""
        return "".join(family.render() for family in self._families.values())


def _counters(family: Family[Instrument]) -> list[Counter]:
    return [instrument for _, instrument in family.children() if isinstance(instrument, Counter)]
