"""A pooling request on its way: its token ids, what scripts say, its places in the engine."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from gevent.event import Event as Bell
from msgspec.structs import replace

from app.api.builder import priority_of
from app.api.chat.prompt import own_template
from app.api.frontend import Frontend
from app.api.identity import ResponseMeta
from app.engine.client import EngineClient, Handle
from app.engine.errors import Aborted
from app.engine.outputs import EngineOutput, Failed, Tokens
from app.engine.request import EngineRequest
from app.faults.damage import damage
from app.faults.injector import fault_of
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.http.response import CLIENT_GONE, Response, json_response
from app.pooling.numbers import TURN, Turns
from app.protocol import validation as rules
from app.protocol.pooling import MAX_INPUTS, ClassificationRequest, EmbeddingRequest, PoolingFields, TokenIds
from app.tokenization import ChatOptions

BATCH = 256
"""Texts that are tokenized in one call."""


def enter(frontend: Frontend, asked: PoolingFields) -> str:
    """The model's name for the answer; ApiError when model, server or fields do not allow the request."""
    for name in ("mm_processor_kwargs", "media_io_kwargs"):
        if getattr(asked, name, None):
            raise bad_request(f"{name} is for models that take more than text.", name)
    model = frontend.models.resolve(asked.model, param=None)
    frontend.responder.engine.check_accepting(1)
    keep, most = asked.truncate_prompt_tokens, frontend.limits.max_model_len
    if keep is not None and keep > most:
        raise bad_request(f"truncate_prompt_tokens={keep} is more than the context of {most} tokens")
    return model


def prompt_ids(frontend: Frontend, asked: ClassificationRequest) -> list[TokenIds]:
    """The token ids of each input, truncated as asked. ApiError 400 for one that is empty or too long."""
    count = len(asked.conversations or asked.texts or asked.id_lists)
    if not count:
        raise bad_request("at least one input is needed")
    check_count(count, "input")
    return [not_empty(fitted(frontend, asked, ids)) for ids in Turns().each(_encoded(frontend, asked), len)]


def texts_of(frontend: Frontend, asked: ClassificationRequest, inputs: Sequence[TokenIds]) -> Iterable[str]:
    """Each input as a text, which is that of its tokens where it came as such, or some were left out."""
    if asked.texts and asked.truncate_prompt_tokens is None:
        return asked.texts
    return map(frontend.tokenizer.decode, inputs)


def _encoded(frontend: Frontend, asked: ClassificationRequest) -> Iterator[TokenIds]:
    if asked.conversations:
        return _conversation_ids(frontend, asked)
    if asked.texts:
        bounded = asked.truncate_prompt_tokens is None
        return text_ids(frontend, asked.texts, bool(asked.add_special_tokens), bounded)
    return _known_ids(frontend, asked.id_lists)


def text_ids(
    frontend: Frontend, texts: Sequence[str], add_special_tokens: bool, bounded: bool
) -> Iterator[TokenIds]:
    """The token ids of each text; with `bounded`, ApiError 400 for one too long before any work on it."""
    for start in range(0, len(texts), BATCH):
        batch = texts[start : start + BATCH]
        for text in batch if bounded else ():
            frontend.check_text(text)
        yield from frontend.tokenizer.encode_many(batch, add_special_tokens)


def fitted(frontend: Frontend, asked: PoolingFields, ids: TokenIds) -> TokenIds:
    """The part of `ids` that the request wants to keep. ApiError 400 when it exceeds the context."""
    kept = asked.kept(ids, frontend.limits.max_model_len)
    rules.check_prompt_length(len(kept), frontend.limits.max_model_len)
    return kept


def check_count(count: int, param: str) -> None:
    """ApiError 400 for more inputs than one request may have."""
    if count > MAX_INPUTS:
        raise bad_request(f"at most {MAX_INPUTS} inputs fit into one request, got {count}", param)


def not_empty(ids: TokenIds) -> TokenIds:
    """The `ids` of an input. ApiError 400 when there are none."""
    if not ids:
        raise bad_request("an input has no tokens")
    return ids


def _known_ids(frontend: Frontend, prompts: Sequence[TokenIds]) -> Iterator[TokenIds]:
    for ids in prompts:
        frontend.tokenizer.check_ids(ids)
        yield ids


def _conversation_ids(frontend: Frontend, asked: ClassificationRequest) -> Iterator[TokenIds]:
    options = ChatOptions(
        add_generation_prompt=asked.add_generation_prompt,
        continue_final_message=asked.continue_final_message,
        add_special_tokens=bool(asked.add_special_tokens),
        chat_template=own_template(asked, frontend.chat_rules),
        chat_template_kwargs=asked.chat_template_kwargs,
    )
    for conversation in asked.conversations:
        yield frontend.tokenizer.encode_chat(conversation, options)


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


AT_ONCE = 256
"""Texts of one request that run or wait at the same time; its others wait outside of the engine."""
GROUP = 16
"""Texts that are submitted together."""


def take_places(
    frontend: Frontend,
    context: RequestContext,
    asked: PoolingFields,
    meta: ResponseMeta,
    count: int,
    prompt: Callable[[int], TokenIds],
    scripted: Scripted,
) -> Response | None:
    """Sleep until the engine has been through `count` prompts; the answer if the client has gone by then.

    `scripted` may have them wait longer than the engine does.

    EngineError where there is no room for the first of them; the others come as soon as there is.
    """
    first = EngineRequest(
        request_id=meta.id,
        index=0,
        model=meta.model,
        prompt_ids=prompt(0),
        echo_text="",
        max_tokens=0,
        limited=False,
        arrival_s=context.arrival_s,
        adapter=meta.model if meta.model in frontend.builder.adapters else None,
        priority=priority_of(context, asked.priority),
        cache_salt=asked.cache_salt,
        together=count,
        observers=context.observers,
        delays=scripted.delays(context),
    )
    load, connection = frontend.responder.load, context.connection
    places = Places(frontend.responder.engine)
    load.begin()
    if connection is not None:
        connection.watch(places.leave)
    try:
        places.go_through(first, count, prompt)
    finally:
        load.end()
        if connection is not None:
            connection.unwatch()
        places.abort()
    return json_response(b"", CLIENT_GONE) if places.gone else None


class Places:
    """Has the engine go through prompts, as many at a time as there is room for."""

    def __init__(self, engine: EngineClient) -> None:
        self.gone = False
        """The client is not there any more."""
        self._engine = engine
        self._error: Exception | None = None
        self._handles: dict[int, Handle] = {}
        """Of the groups that are not over, by the index of their first text."""
        self._left: dict[int, int] = {}
        self._unfinished = 0
        self._bell = Bell()

    def go_through(self, first: EngineRequest, count: int, prompt: Callable[[int], TokenIds]) -> None:
        """Until all are over, one has failed, or the client has gone."""
        turns, start = Turns(), 0
        while start < count and not self._is_over():
            room = min(self._engine.room(first.adapter), AT_ONCE - self._unfinished, GROUP)
            if room <= 0 and self._unfinished:
                self._wait()
                continue
            stop = min(start + max(room, 1), count)
            self._submit([_of(first, index, prompt(index)) for index in range(start, stop)])
            start = stop
            turns.spend(TURN // 4)
        while self._unfinished and not self._is_over():
            self._wait()
        if self._error is not None:
            raise self._error

    def leave(self) -> None:
        """The client has gone."""
        self.gone = True
        self._bell.set()

    def abort(self) -> None:
        """End what is not over."""
        for handle in list(self._handles.values()):
            handle.abort()

    def _is_over(self) -> bool:
        return self.gone or self._error is not None

    def _wait(self) -> None:
        self._bell.clear()
        self._bell.wait()

    def _submit(self, group: Sequence[EngineRequest]) -> None:
        number = group[0].index
        self._left[number] = len(group)
        self._unfinished += len(group)

        def emit(output: EngineOutput) -> None:
            if type(output) is Failed:
                self._error = output.error
            elif type(output) is Tokens and output.finish is not None:
                if output.finish.reason == "abort":
                    self._error = Aborted()
            else:
                return
            self._one_less(number)

        try:
            handle = self._engine.submit(group, emit)
        except Exception:
            self._unfinished -= self._left.pop(number)
            raise
        if number in self._left:
            self._handles[number] = handle

    def _one_less(self, number: int) -> None:
        self._unfinished -= 1
        self._left[number] -= 1
        if not self._left[number]:
            del self._left[number]
            self._handles.pop(number, None)
        self._bell.set()


def _of(first: EngineRequest, index: int, ids: TokenIds) -> EngineRequest:
    return first if index == 0 else replace(first, index=index, prompt_ids=ids)
