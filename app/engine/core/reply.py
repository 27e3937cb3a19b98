"""Whole replies, decided before the first token is due, and the interface of models that decide replies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from app.engine.core.outputs import Finish, Part, TokenLogprob
from app.engine.core.request import EngineRequest

STOP = Finish("stop")
LENGTH = Finish("length")
Span = tuple[int, Part | None]


class Reply(Struct, gc=False):
    """A reply: `texts[i]` is the text that token `ids[i]` adds, `finish` the way the reply ends.

    Items of `texts` beyond the last id are not tokens but, for example, images. `spans` assigns tokens to
    parts: each span is its end (number of its last token + 1) and its part. Plain text has no spans.
    """

    texts: Sequence[str]
    ids: Sequence[int]
    finish: Finish
    spans: Sequence[Span] = ()
    logprobs: Sequence[TokenLogprob] | None = None
    """One entry per token, if wanted. Slices are lazy."""
    prompt_logprobs: Sequence[TokenLogprob | None] | None = None
    """One entry per prompt token, if wanted; the first is None."""
    delays: Sequence[tuple[int, float]] = ()
    """Deliberate extra waits: (before token n, seconds)."""

    def all_spans(self) -> Sequence[Span]:
        return self.spans or [(len(self.texts), None)]

    def end(self, eos_token_id: int, most: int) -> None:
        """Appends the end-of-text token to a reply that stops; one with `most` tokens gets LENGTH."""
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
        """Returns the first `most` tokens; a longer reply finishes with LENGTH."""
        if len(self.ids) <= most:
            return self
        spans = [(min(end, most), part) for end, part in self.spans]
        texts, ids = self.texts[:most], self.ids[:most]
        return replace(self, texts=texts, ids=ids, finish=LENGTH, spans=distinct(spans))


def distinct(spans: Sequence[Span]) -> list[Span]:
    starts = (0, *(end for end, _ in spans))
    return [span for start, span in zip(starts, spans, strict=False) if span[0] > start]


def joined(first: Reply, second: Reply) -> Reply:
    shift = len(first.texts)
    spans = [*first.all_spans(), *((end + shift, part) for end, part in second.all_spans())]
    return Reply([*first.texts, *second.texts], [*first.ids, *second.ids], second.finish, distinct(spans))


class Model(Protocol):
    """Decides replies; the engine decides timing."""

    def reply(self, request: EngineRequest) -> Reply:
        """Returns the whole reply. Calls come in order of arrival. Raises SchemaUnsatisfiable."""
