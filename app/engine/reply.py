"""A whole reply, decided before its first token is due, and what the engine asks of a model: to decide it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from app.engine.outputs import Finish, Part, TokenLogprob
from app.engine.request import EngineRequest

STOP = Finish("stop")
LENGTH = Finish("length")
Span = tuple[int, Part | None]


class Reply(Struct, gc=False):
    """`texts[i]` is what token `ids[i]` adds, `finish` how the reply ends.

    An item of `texts` beyond the last id is no token: an image, for one. `spans` says what the tokens
    belong to, each span as its end (the number of its last token + 1) and its part; a reply that is all
    text has none.
    """

    texts: Sequence[str]
    ids: Sequence[int]
    finish: Finish
    spans: Sequence[Span] = ()
    logprobs: Sequence[TokenLogprob] | None = None
    """One entry per token, if they are wanted. A slice costs nothing until it is read."""
    prompt_logprobs: Sequence[TokenLogprob | None] | None = None
    """The same for the prompt; its first entry is None."""
    delays: Sequence[tuple[int, float]] = ()
    """Extra waits on purpose: (before token n, seconds)."""

    def all_spans(self) -> Sequence[Span]:
        """The spans, also of a reply that is all text."""
        return self.spans or [(len(self.texts), None)]

    def end(self, eos_token_id: int, most: int) -> None:
        """Add the token that ends a reply which ends of itself; one that has its `most` tokens ends for them.

        The end of text shows nothing. It belongs to what comes before it.
        """
        finish, count = self.finish, len(self.ids)
        if finish is not STOP and finish != STOP:
            return
        if count >= most:
            self.finish = LENGTH
            return
        self.texts, self.ids = [*self.texts, ""], [*self.ids, eos_token_id]
        if self.spans:
            self.spans = [*self.spans[:-1], (count + 1, self.spans[-1][1])]

    def cut(self, most: int) -> Reply:
        """The first `most` tokens; a reply that has more of them ends for its length."""
        if len(self.ids) <= most:
            return self
        spans = [(min(end, most), part) for end, part in self.spans]
        texts, ids = self.texts[:most], self.ids[:most]
        return replace(self, texts=texts, ids=ids, finish=LENGTH, spans=distinct(spans))


def distinct(spans: Sequence[Span]) -> list[Span]:
    starts = (0, *(end for end, _ in spans))
    return [span for start, span in zip(starts, spans, strict=False) if span[0] > start]


def joined(first: Reply, second: Reply) -> Reply:
    """Both, one after the other; it ends as the second does."""
    shift = len(first.texts)
    spans = [*first.all_spans(), *((end + shift, part) for end, part in second.all_spans())]
    return Reply([*first.texts, *second.texts], [*first.ids, *second.ids], second.finish, distinct(spans))


class Model(Protocol):
    """Says what is said; the engine says when."""

    def reply(self, request: EngineRequest) -> Reply:
        """The whole reply. Called in order of arrival, so that replies depend on that order only.

        SchemaUnsatisfiable when no reply has the form that is asked for.
        """
