"""What scripts say about the inputs of a pooling request, each of which is asked about on its own."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from app.api.frontend import Frontend
from app.faults.damage import damage
from app.faults.injector import fault_of
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.http.response import Response
from app.protocol.pooling import ClassificationRequest, EmbeddingRequest, TokenIds

if TYPE_CHECKING:
    from app.script.action import Answer
    from app.script.book import Decision
    from app.script.matching import Message

DOCUMENT = "document"
"""Role of what a query is compared with; the query is a user's."""
Vector: TypeAlias = "array[float] | str | None"
"""A vector; a text whose vector it is; nothing is said."""


class Scripted(NamedTuple):
    """What was decided about each input, or nothing at all."""

    decisions: Sequence[Decision | None] = ()

    @property
    def answers(self) -> Iterator[Answer | None]:
        """What is said of each input."""
        return (None if decision is None else decision.answer for decision in self.decisions)

    def of(self, index: int) -> Answer | None:
        """What is said of an input."""
        decision = self.decisions[index] if self.decisions else None
        return None if decision is None else decision.answer

    def tokens(self, true: int) -> int:
        """The tokens of the prompts that usage tells; the last answer that has an opinion decides."""
        told = true
        for answer in self.answers:
            if answer is not None and answer.usage is not None and answer.usage.prompt_tokens is not None:
                told = answer.usage.prompt_tokens
        return told

    def delays(self, context: RequestContext) -> tuple[tuple[int, float], ...]:
        """Waits before there are numbers: the longest of all inputs, and that of a fault."""
        fault = fault_of(context)
        waits = [answer.reply.first_token_s for answer in self.answers if answer is not None]
        longest = max(waits, default=0.0)
        return (*((0, longest),) * bool(longest), *(() if fault is None else fault.delays))

    def vector(self, index: int) -> Vector:
        """What is said of an input's vector."""
        answer = self.of(index)
        said = None if answer is None else answer.embedding
        return array("f", said) if isinstance(said, tuple) else said

    def classes(self, index: int) -> tuple[list[float], list[str]] | None:
        """Probabilities of an input's classes, and their names, which may be none."""
        answer = self.of(index)
        if answer is None or answer.classes is None:
            return None
        if isinstance(answer.classes, dict):
            return list(answer.classes.values()), list(answer.classes)
        return list(answer.classes), []

    def scored(self, scores: Sequence[float]) -> list[float]:
        """`scores`, but for the pairs of which something is said."""
        said = [None if answer is None else answer.score for answer in self.answers]
        if not said:
            return list(scores)
        return [own if score is None else score for own, score in zip(scores, said, strict=True)]


def of_inputs(
    frontend: Frontend,
    asked: ClassificationRequest,
    inputs: Sequence[TokenIds],
    wants: str,
    model: str,
    context: RequestContext,
) -> Scripted:
    """What is said of texts, lists of token ids or conversations. ApiError for a fault that is one."""
    if frontend.scripts is None:
        return Scripted()
    scripted = Scripted(
        frontend.scripts.pooled(_messages(frontend, asked, inputs), wants, asked.model or model, context)
    )
    if isinstance(asked, EmbeddingRequest) and asked.dimensions is not None:
        _check_dimensions(scripted, asked.dimensions)
    return scripted


def of_pairs(
    frontend: Frontend, pairs: Iterable[tuple[str, str]], model: str, context: RequestContext
) -> Scripted:
    """What is said of queries and their documents."""
    if frontend.scripts is None:
        return Scripted()
    from app.script.matching import Message  # and regexes, which servers without scripts do without

    messages = ((Message("user", query), Message(DOCUMENT, document)) for query, document in pairs)
    return Scripted(frontend.scripts.pooled(messages, "score", model, context))


def struck(answer: Response, context: RequestContext) -> Response:
    """`answer`, damaged where a fault says so."""
    return damage(answer, fault_of(context), context)


def _messages(
    frontend: Frontend, asked: ClassificationRequest, inputs: Sequence[TokenIds]
) -> Iterator[Sequence[Message]]:
    """The messages of each input; a text is a user's."""
    from app.api.script import messages_of
    from app.script.matching import Message

    if asked.conversations:
        yield from map(messages_of, asked.conversations)
        return
    for number, ids in enumerate(inputs):
        yield (Message("user", asked.texts[number] if asked.texts else frontend.tokenizer.decode(ids)),)


def _check_dimensions(scripted: Scripted, wanted: int) -> None:
    """ApiError 400 where a vector has not as many numbers as the request wants."""
    for decision in scripted.decisions:
        said = None if decision is None or decision.answer is None else decision.answer.embedding
        if decision is not None and isinstance(said, tuple) and len(said) != wanted:
            place = decision.rule.place
            raise bad_request(f"{place}: its vector has {len(said)} numbers, not {wanted}.", "dimensions")
