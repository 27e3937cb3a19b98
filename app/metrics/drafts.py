"""The families of speculative decoding (vllm-api.md 11.3): there where drafts are played, as in vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.metrics.families import Spec, families_of
from app.metrics.instruments import Counter, Instrument

DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


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
            self._counters(name) for name in (DRAFTS, DRAFTED, ACCEPTED)
        )
        self._by_position = self._counters(BY_POSITION)

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

    def _counters(self, name: str) -> list[Counter]:
        return [_counter(instrument) for _, instrument in self._families[name].children()]


def _counter(instrument: Instrument) -> Counter:
    assert isinstance(instrument, Counter)
    return instrument
