"""The one way in which an API family writes what the engine says."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from msgspec import Raw, Struct

from app.api.choice import ChoiceState, split
from app.api.logprobs import SomeEntries, width
from app.api.pieces import SLICE, Holes, blocks
from app.engine.outputs import EngineOutput, Failed, Started, Tokens
from app.protocol.common import encode

T = TypeVar("T", bound=Struct)

TAKEN = 4096
"""Outputs that are taken in at once."""


class ResponseWriter(ABC):
    """One answer to one request, as a stream or whole. No other code knows a family's wire format.

    A stream: `chunk`, or `chunks` of what is large, for every output; then `closing`.
    A whole answer: `take` for every output as it comes; then `body`, or `pieces` of what may be large.
    """

    cached_tokens = 0
    prompt_logprobs: SomeEntries | None = None
    has_failed = False

    def __init__(self, choices: int) -> None:
        self.choices = [ChoiceState()] if choices == 1 else [ChoiceState() for _ in range(choices)]

    @abstractmethod
    def chunk(self, output: EngineOutput) -> bytes:
        """The server-sent events that tell of `output`; empty when there is nothing to tell."""

    def chunks(self, output: EngineOutput) -> Iterator[bytes]:
        """As `chunk`, in pieces of whole events that take less than 5 ms each. An empty one is a pause."""
        if type(output) is not Tokens:
            yield self.chunk(output)
            return
        for part in split(output, max(1, SLICE // width(output.logprobs))):
            yield self.chunk(part)

    def is_large(self, output: EngineOutput) -> bool:
        """The events of `output` may take longer than 5 ms: take them from `chunks`."""
        return False

    def around_text(self, index: int) -> tuple[bytes, bytes] | None:
        """What the event of a plain token of a choice has before and behind its text, which is JSON.

        None when events of tokens are not that simple, or when nothing was written yet.
        """
        return None

    @abstractmethod
    def closing(self) -> bytes:
        """What ends the stream, after the last choice is over."""

    def take(self, output: EngineOutput) -> None:
        """Take an output in, for a whole answer. Raises the error of a `Failed` one."""
        if type(output) is Tokens:
            self.choices[output.index].take(output)
        elif type(output) is Started:
            self.cached_tokens = output.cached_tokens
            self.prompt_logprobs = output.prompt_logprobs
        elif type(output) is Failed:
            raise output.error

    def body(self, outputs: Iterable[EngineOutput] = ()) -> bytes:
        """The whole JSON answer, after `outputs`. Raises the error of a `Failed` one."""
        for output in outputs:
            self.take(output)
        holes = Holes()
        whole = self.whole(holes)
        return b"".join(holes.written(whole)) if holes.fillings else encode(whole)

    def pieces(self, outputs: Iterable[EngineOutput] = ()) -> Iterator[bytes]:
        """As `body`, in pieces of about 32 KiB, none of which takes longer than 5 ms to make.

        An empty piece is a pause. An error comes before the first other piece.
        """
        for number, output in enumerate(outputs, 1):
            self.take(output)
            if number % TAKEN == 0:
                yield b""
        holes = Holes()
        yield from blocks(holes.written(self.whole(holes)))

    @abstractmethod
    def whole(self, holes: Holes) -> Struct:
        """The answer as a struct, whose long values are in `holes`."""

    def each_choice(self, make: Callable[[int, ChoiceState, Holes], T], holes: Holes) -> Sequence[T] | Raw:
        """What `make` makes of each choice and its number; one choice after the other, if they are large."""
        choices = self.choices
        if len(choices) == 1:
            return (make(0, choices[0], holes),)
        if len(choices) + sum(choice.tokens for choice in choices) <= SLICE // 8:
            return [make(index, choice, holes) for index, choice in enumerate(choices)]
        return holes.objects(choices, make)
