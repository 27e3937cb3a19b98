"""Outputs of the engine, which the response writers of each API family render.

An output belongs to one choice (`index`). A choice emits one `Started`, then `Tokens` until one
carries a `Finish`. `Failed` may come at any point and ends the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from typing import Literal, TypeVar, overload

from msgspec import Struct
from msgspec.structs import replace

StopCause = Literal["stop", "length", "abort", "cache_threshold", "content_filter", "repetition"]
T = TypeVar("T", covariant=True)


class TokenLogprob(Struct, gc=False, frozen=True):
    """A token's natural-log probability, its rank (from 1), and its alternatives.

    The alternatives have the other ranks, in order.
    """

    token_id: int
    token: str
    logprob: float
    top: Sequence[tuple[int, str, float]]
    """(token id, text, log probability) of each alternative, best first."""
    rank: int = 1

    @property
    def ranks(self) -> Iterator[int]:
        """Ranks of the token and its alternatives, without end."""
        return chain((self.rank,), (rank for rank in count(1) if rank != self.rank))


class Finish(Struct, gc=False, frozen=True):
    """Reason why a choice ended; `stop_reason` is the stop string or token id that matched."""

    reason: StopCause
    stop_reason: str | int | None = None


class Part(Struct, gc=False, frozen=True):
    """Kind of tokens other than plain text: thoughts, a tool call, or an image.

    `number` counts the calls of a choice from 0. `name` is the called function, empty until its
    tokens have been emitted. A call's texts are its arguments, an image's a data URL; markup tokens
    have empty texts.
    """

    kind: Literal["reasoning", "call", "image"]
    number: int = 0
    name: str = ""
    raw: str = ""
    """Whole reply with markup, if its last call was cut off.

    Non-streaming responses show it as their text.
    """
    id: str = ""
    """Id of a call for the client; if empty, the response writer generates one."""


class Started(Struct, gc=False):
    """The prefill is over, and the first token is due."""

    index: int
    at_s: float
    cached_tokens: int = 0
    prompt_logprobs: Sequence[TokenLogprob | None] | None = None
    """One entry per prompt token, created on access: slice the sequence for long prompts."""
    queued_s: float | None = None
    """When the scheduler saw the sequence; None where a sequence did not wait, or never ran."""
    scheduled_s: float | None = None
    created_tokens: int = 0
    """Tokens of the prompt's whole blocks that this sequence added to the cache."""
    is_followed: bool = True
    """False if all tokens follow at once."""


class Tokens(Struct, gc=False):
    """Tokens, the last one due at `at_s` (monotonic seconds).

    `ids[i]` adds `texts[i]`, which may be empty.
    """

    index: int
    texts: Sequence[str]
    ids: Sequence[int]
    at_s: float
    logprobs: Sequence[TokenLogprob] | None = None
    finish: Finish | None = None
    part: Part | None = None

    def split(self, count: int) -> tuple[Tokens, Tokens]:
        """Splits off the first `count` tokens, at least 1 and fewer than all.

        The second output keeps `finish`.
        """
        return self._slice(slice(count), None), self._slice(slice(count, None), self.finish)

    def _slice(self, positions: slice, finish: Finish | None) -> Tokens:
        return replace(
            self,
            texts=self.texts[positions],
            ids=self.ids[positions],
            logprobs=self.logprobs and self.logprobs[positions],
            finish=finish,
        )


Piece = tuple[Part | None, str]
"""A text and the part that contains it."""


class TokenBacklog:
    """Merges the waiting tokens of choices, so that a backlog takes a few bytes per token.

    Separate outputs take 400 bytes per token, in three objects that the garbage collector follows:
    a million such objects hold the event loop for 140 ms at each collection.
    """

    __slots__ = ("_tails",)

    def __init__(self) -> None:
        self._tails: dict[int, Tokens] = {}
        """The last waiting output of each choice, whose lists belong to this object."""

    def hold(self, output: Tokens, waiting: list[EngineOutput]) -> None:
        """Adds `output` to the last waiting output of its choice if both are of one part.

        Otherwise appends it to `waiting`. The tokens of a choice stay in order.
        """
        tail = self._tails.get(output.index)
        if tail is not None and tail.part == output.part and _append_logprobs(tail, output):
            tail.texts += output.texts  # type: ignore[operator]
            tail.ids += output.ids  # type: ignore[operator]
            tail.at_s = output.at_s
            tail.finish = output.finish
            return
        tail = replace(output, texts=[*output.texts], ids=[*output.ids])
        self._tails[output.index] = tail
        waiting.append(tail)

    def forget(self) -> None:
        """Puts later tokens into new outputs; call before waiting outputs are sent."""
        self._tails.clear()


def _append_logprobs(tail: Tokens, output: Tokens) -> bool:
    """Appends the log probabilities of `output` to `tail`; False if they do not join."""
    if tail.logprobs is None or output.logprobs is None:
        return tail.logprobs is output.logprobs
    if not isinstance(tail.logprobs, LazySequence):
        return False
    joined = tail.logprobs.joined(output.logprobs)
    if joined is None:
        return False
    tail.logprobs = joined
    return True


class Failed(Struct, gc=False):
    """The choice has failed, and ends."""

    index: int
    error: Exception


EngineOutput = Started | Tokens | Failed

TakeToken = Callable[[str, int, float], None]
"""Receives the text, id and due time of one plain token."""
Emit = Callable[[EngineOutput], TakeToken | None]
"""Receives an output, in the hub or in any greenlet; must not wait.

The answer to a `Started` may be a `TakeToken`, which receives the choice's plain tokens from then
on. Thousands of streams then cost no object per token. The answer to `Tokens` of a tool call may be
one for further tokens of this part, except the last one.
"""


class LazySequence(Sequence[T]):
    """View of `positions`: each item is created by `make` on access; a slice is another view."""

    __slots__ = ("_make", "_positions")

    def __init__(self, make: Callable[[int], T], positions: range) -> None:
        self._make = make
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    def __iter__(self) -> Iterator[T]:
        return map(self._make, self._positions)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> LazySequence[T]: ...
    def __getitem__(self, index: int | slice) -> T | LazySequence[T]:
        if isinstance(index, slice):
            return LazySequence(self._make, self._positions[index])
        return self._make(self._positions[index])

    def joined(self, following: Sequence[T]) -> LazySequence[T] | None:
        """Returns a view of this and `following`, if that continues this one; else None."""
        if not isinstance(following, LazySequence) or following._make != self._make:
            return None
        positions = self._positions
        next_positions = following._positions
        if positions.stop != next_positions.start or positions.step != next_positions.step:
            return None
        return LazySequence(self._make, range(positions.start, next_positions.stop, positions.step))
