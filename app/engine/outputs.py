"""What comes out of the engine. It emits outputs; the writers of the API families write them down.

An output belongs to one choice (`index`). A choice emits one `Started`, then `Tokens` until one of them
carries a `Finish`; or `Failed` at any point, and nothing after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from typing import Literal, Protocol, TypeVar, overload

from msgspec import Struct

StopCause = Literal["stop", "length", "abort", "cache_threshold", "content_filter"]


class TokenLogprob(Struct, gc=False, frozen=True):
    """A token with its natural-log probability and the alternatives, itself first.

    `rank` is its own, from 1; the alternatives behind it are those of the other ranks, best first.
    """

    token_id: int
    token: str
    logprob: float
    top: Sequence[tuple[int, str, float]]
    """(token id, text, log probability) of each alternative, best first."""
    rank: int = 1

    @property
    def ranks(self) -> Iterator[int]:
        """Those of `top`, one after another."""
        return chain((self.rank,), (rank for rank in count(1) if rank != self.rank))


class Finish(Struct, gc=False, frozen=True):
    """Why a choice ended; `stop_reason` is the stop string or the token id that matched."""

    reason: StopCause
    stop_reason: str | int | None = None


class Part(Struct, gc=False, frozen=True):
    """What tokens belong to that are not the reply's own text: a thought, a tool call, an image.

    `number` counts the calls of a choice from 0, `name` is the function that a call calls; empty until its
    tokens have told it. The texts of a call are its arguments, those of an image a data URL; tokens of the
    markup around them have none.
    """

    kind: Literal["reasoning", "call", "image"]
    number: int = 0
    name: str = ""
    raw: str = ""
    """All of a reply whose last call was cut off, with its markup: whole answers tell it as their text."""
    id: str = ""
    """What the client is told as the id of a call; where it is empty, the writer draws one."""


class Started(Struct, gc=False):
    """The prompt has been read; the first token is due now."""

    index: int
    at_s: float
    cached_tokens: int = 0
    prompt_logprobs: Sequence[TokenLogprob | None] | None = None
    """One entry per prompt token, made when it is looked at: take slices of a long prompt."""
    queue_s: float = 0.0
    prefill_s: float = 0.0
    """Seconds of waiting, and of running up to `at_s`."""
    created_tokens: int = 0
    """Tokens of the prompt's whole blocks that were not cached, and are from now on."""


class Tokens(Struct, gc=False):
    """One or more tokens, due at `at_s` (the moment of the last one, monotonic seconds).

    `texts[i]` is the text that `ids[i]` adds to the reply; it may be empty, for instance while a
    character is incomplete.
    """

    index: int
    texts: Sequence[str]
    ids: Sequence[int]
    at_s: float
    logprobs: Sequence[TokenLogprob] | None = None
    """One entry per token, made when it is looked at."""
    finish: Finish | None = None
    part: Part | None = None
    """What all these tokens belong to; None is the reply's own text."""

    def split(self, count: int) -> tuple[Tokens, Tokens]:
        """The first `count` tokens (>= 1, fewer than there are), and the rest with the end."""
        texts, ids, logprobs = self.texts, self.ids, self.logprobs
        first = Tokens(
            self.index,
            texts[:count],
            ids[:count],
            self.at_s,
            None if logprobs is None else logprobs[:count],
            None,
            self.part,
        )
        rest = Tokens(
            self.index,
            texts[count:],
            ids[count:],
            self.at_s,
            None if logprobs is None else logprobs[count:],
            self.finish,
            self.part,
        )
        return first, rest


Piece = tuple[Part | None, str]
"""Some text, and what it belongs to."""


class PartReader(Protocol):
    """Finds out, of a text that comes bit by bit, what belongs to what.

    The pieces of a text are the same, joined where they are of one part, however it was cut.
    """

    def feed(self, text: str) -> Sequence[Piece]:
        """The pieces that are certain now; what may yet become something else is kept for later."""

    def finish(self) -> Sequence[Piece]:
        """The text is over: what was kept."""


class Failed(Struct, gc=False):
    """The choice broke; `error` is what the client is told."""

    index: int
    error: Exception


EngineOutput = Started | Tokens | Failed


T = TypeVar("T", covariant=True)


class LazySequence(Sequence[T]):
    """Items of `positions`, each made by `make` whenever it is looked at; a slice is another such view."""

    __slots__ = ("_make", "_positions")

    def __init__(self, make: Callable[[int], T], positions: range) -> None:
        self._make, self._positions = make, positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> LazySequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | LazySequence[T]:
        if isinstance(index, slice):
            return LazySequence(self._make, self._positions[index])
        return self._make(self._positions[index])
