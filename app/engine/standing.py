"""How a sequence stands, for who watches: read from outside, now and then, and nothing is noted for it."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import Protocol

from msgspec import Struct

from app.engine.batch import SequenceState
from app.engine.request import EngineRequest
from app.metrics.recorder import Recorder


class Phase(IntEnum):
    """What a sequence does that is not over."""

    QUEUED = 0
    PREFILL = 1
    TRANSFER = 2
    """The cache of its prompt, which was computed elsewhere, is on its way."""
    DECODE = 3
    PREEMPTED = 4


class Standing(Struct, frozen=True, gc=False):
    """`computed` tokens of the prompt are there or under way; `held` blocks count where steps are shared.

    Moments are monotonic seconds: since when it runs, and when its first token was due.
    """

    phase: Phase
    computed: int
    held: int
    scheduled_s: float | None
    first_s: float | None


def phase_in_steps(state: SequenceState) -> Phase:
    """What a sequence does, as its scheduler knows it."""
    if state.decodes or state.last:
        return Phase.DECODE
    if state.running:
        return Phase.PREFILL
    if state.preemptions:
        return Phase.PREEMPTED
    return Phase.TRANSFER if state.held else Phase.QUEUED


def computed_in_steps(state: SequenceState) -> int:
    """Tokens of the prompt that are scheduled; a decode that advances in bulk has them all."""
    return state.prompt_tokens if state.decodes or state.last else min(state.computed, state.prompt_tokens)


class Watched(Protocol):
    """A choice in an engine, as it can be looked at, wherever that computes."""

    request: EngineRequest
    tokens: int
    over: bool

    @property
    def preemptions(self) -> int:
        """How often it lost its blocks."""

    @property
    def text(self) -> str:
        """What it has said so far, where that is known."""

    def standing(self) -> Standing:
        """How it stands now."""

    def blocks_from(self, first: int) -> list[int]:
        """The numbers of its KV blocks, from its `first`-th one on; none where they have no numbers."""


class WatchedEngine(Protocol):
    """An engine, as it can be looked at."""

    @property
    def recorder(self) -> Recorder:
        """Where it counts."""

    @property
    def draining(self) -> bool:
        """True when nothing more is admitted."""

    def sequences(self) -> Iterator[Watched]:
        """All choices that are not over, the latest first."""
