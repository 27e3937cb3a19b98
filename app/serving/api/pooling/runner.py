"""Runs pooling requests: token ids, decisions of scripts, a turn in the engine."""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from gevent.event import Event as Bell
from msgspec.structs import replace

from app.base.clock.pause import Pace
from app.engine.core.client import EngineClient, Handle
from app.engine.core.errors import Aborted, CallerLeft
from app.engine.core.outputs import EngineOutput, Failed, Tokens
from app.engine.core.request import EngineRequest
from app.serving.api.builder import priority_of
from app.serving.api.chat.prompt import own_template
from app.serving.api.identity import ResponseMeta
from app.serving.api.pipeline import RequestPipeline
from app.serving.faults.injector import fault_of
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.protocol import validation as rules
from app.serving.protocol.pooling import (
    MAX_INPUTS,
    ClassificationRequest,
    EmbeddingRequest,
    PoolingFields,
    TokenIds,
)
from app.text import ChatOptions

if TYPE_CHECKING:
    from app.serving.scripts.action import Answer
    from app.serving.scripts.matching import Message
    from app.serving.scripts.script_set import Decision

BATCH = 256
"""Texts tokenized in one call."""
AT_ONCE = 256
"""Most prompts of one request that run or wait in the engine at a time; the rest wait outside."""
GROUP = 16
"""Prompts submitted together."""
DOCUMENT = "document"
"""Role of the text that a query is compared with; the query's role is `user`."""

Vector: TypeAlias = "array[float] | str | None"
"""A vector; a text to embed instead; None where scripts decide nothing."""
Prompt = Callable[[int], TokenIds]
"""Returns the token ids of a prompt by its number."""
T = TypeVar("T")


class Scripted(NamedTuple):
    """Decisions of scripts about each input; empty without scripts."""

    decisions: Sequence[Decision | None] = ()

    def answer(self, index: int) -> Answer | None:
        decision = self.decisions[index] if self.decisions else None
        return None if decision is None else decision.answer

    @property
    def _answers(self) -> list[Answer | None]:
        return [self.answer(index) for index in range(len(self.decisions))]

    def prompt_tokens(self, counted: int) -> int:
        """Prompt tokens for `usage`, from the last script that names them, else `counted`."""
        usages = [answer.usage for answer in self._answers if answer is not None and answer.usage is not None]
        named = [usage.prompt_tokens for usage in usages if usage.prompt_tokens is not None]
        return named[-1] if named else counted

    def delays(self, context: RequestContext) -> tuple[tuple[int, float], ...]:
        """Waits before the answer, in seconds: the longest wait of all inputs, and the waits of a fault."""
        fault = fault_of(context)
        longest = max((a.reply.first_token_s for a in self._answers if a is not None), default=0.0)
        return (*((0, longest),) * bool(longest), *(() if fault is None else fault.delays))

    def vector(self, index: int) -> Vector:
        answer = self.answer(index)
        given = None if answer is None else answer.embedding
        return array("f", given) if isinstance(given, tuple) else given

    def classes(self, index: int) -> tuple[list[float], list[str]] | None:
        """Returns probabilities of an input's classes, and the names of the classes, if any."""
        answer = self.answer(index)
        if answer is None or answer.classes is None:
            return None
        if isinstance(answer.classes, dict):
            return list(answer.classes.values()), list(answer.classes)
        return list(answer.classes), []

    def scored(self, scores: Sequence[float]) -> list[float]:
        """Returns `scores`, with decisions of scripts in their places."""
        given = [None if (answer := self.answer(at)) is None else answer.score for at in range(len(scores))]
        return [own if score is None else score for own, score in zip(scores, given, strict=True)]


class PoolingJob(NamedTuple):
    """A request whose prompts have left the engine: its numbers can be computed."""

    meta: ResponseMeta
    inputs: Sequence[TokenIds]
    scripted: Scripted

    @property
    def prompt_tokens(self) -> int:
        return self.scripted.prompt_tokens(sum(map(len, self.inputs)))


class PoolingRunner:
    """Reads pooling requests, and waits for their turn in the engine.

    `pace` is called between parts of long work, and gives other requests a turn when one is due.
    """

    def __init__(self, pipeline: RequestPipeline) -> None:
        self.pipeline = pipeline
        self.pace = Pace(time.monotonic)

    def paced(self, items: Iterable[T]) -> Iterator[T]:
        """Yields `items`, with turns of other requests in between."""
        for item in items:
            self.pace()
            yield item

    def admit(self, request: PoolingFields) -> str:
        """Returns the model's name for the answer.

        ApiError when model, server or fields forbid the request.
        """
        pipeline = self.pipeline
        for name in ("mm_processor_kwargs", "media_io_kwargs"):
            if getattr(request, name, None):
                raise bad_request(f"{name} is for models that take more than text.", name)
        model = pipeline.models.resolve(request.model, param=None)
        pipeline.responder.engine.check_accepting(1)
        keep, most = request.truncate_prompt_tokens, pipeline.limits.max_model_len
        if keep is not None and keep > most:
            raise bad_request(f"truncate_prompt_tokens={keep} is more than the context of {most} tokens")
        return model

    def inputs(self, request: ClassificationRequest) -> list[TokenIds]:
        """Returns the token ids of each input, truncated. ApiError 400 for an empty or too long input."""
        count = len(request.conversations or request.texts or request.id_lists)
        if not count:
            raise bad_request("at least one input is needed")
        check_count(count, "input")
        return [not_empty(self.fitted(request, ids)) for ids in self.paced(self._encoded(request))]

    def _encoded(self, request: ClassificationRequest) -> Iterator[TokenIds]:
        tokenizer = self.pipeline.tokenizer
        if request.conversations:
            options = ChatOptions(
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
                add_special_tokens=bool(request.add_special_tokens),
                chat_template=own_template(request, self.pipeline.chat_rules),
                chat_template_kwargs=request.chat_template_kwargs,
            )
            yield from (tokenizer.encode_chat(chat, options) for chat in request.conversations)
        elif request.texts:
            bounded = request.truncate_prompt_tokens is None
            yield from self.encode(request.texts, bool(request.add_special_tokens), bounded)
        for ids in request.id_lists:
            tokenizer.check_ids(ids)
            yield ids

    def encode(self, texts: Sequence[str], add_special_tokens: bool, bounded: bool) -> Iterator[TokenIds]:
        """Yields the token ids of each text.

        With `bounded`, ApiError 400 for a text that is too long, before any work on it.
        """
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            for text in batch if bounded else ():
                self.pipeline.check_text(text)
            yield from self.pipeline.tokenizer.encode_many(batch, add_special_tokens)

    def fitted(self, request: PoolingFields, ids: TokenIds) -> TokenIds:
        """The part of `ids` that the request keeps. ApiError 400 when it exceeds the context."""
        kept = request.kept(ids, self.pipeline.limits.max_model_len)
        rules.check_prompt_length(len(kept), self.pipeline.limits.max_model_len)
        return kept

    def texts(self, request: ClassificationRequest, inputs: Sequence[TokenIds]) -> Iterable[str]:
        """Returns each input as a text, decoded where it came as tokens or was truncated."""
        if request.texts and request.truncate_prompt_tokens is None:
            return request.texts
        return map(self.pipeline.tokenizer.decode, inputs)

    def run(
        self,
        context: RequestContext,
        request: ClassificationRequest,
        inputs: Sequence[TokenIds],
        meta: ResponseMeta,
        wants: str,
    ) -> PoolingJob:
        """Sleeps until the engine has run all `inputs`; before, scripts decide about `wants`.

        Raises ApiError for a fault of a script, and the errors of `go_through`.
        """
        scripted = Scripted()
        if (scripts := self.pipeline.scripts) is not None:
            messages = self._messages(request, inputs)
            scripted = Scripted(scripts.pooled(messages, wants, request.model or meta.model, context))
            if isinstance(request, EmbeddingRequest) and request.dimensions is not None:
                _check_dimensions(scripted, request.dimensions)
        self.go_through(context, request, meta, len(inputs), inputs.__getitem__, scripted)
        return PoolingJob(meta, inputs, scripted)

    def _messages(
        self, request: ClassificationRequest, inputs: Sequence[TokenIds]
    ) -> Iterator[Sequence[Message]]:
        """Yields the messages of each input; a text is one message of the user."""
        from app.serving.api.script import messages_of  # imports regexes, too, which few servers need
        from app.serving.scripts.matching import Message

        if request.conversations:
            yield from map(messages_of, request.conversations)
            return
        texts = request.texts or map(self.pipeline.tokenizer.decode, inputs)
        yield from ((Message("user", text),) for text in texts)

    def ask_of_pairs(self, pairs: Iterable[tuple[str, str]], model: str, context: RequestContext) -> Scripted:
        """Returns decisions of scripts about queries and their documents.

        ApiError for a fault of a script.
        """
        if self.pipeline.scripts is None:
            return Scripted()
        from app.serving.scripts.matching import Message

        messages = ((Message("user", query), Message(DOCUMENT, document)) for query, document in pairs)
        return Scripted(self.pipeline.scripts.pooled(messages, "score", model, context))

    def go_through(
        self,
        context: RequestContext,
        request: PoolingFields,
        meta: ResponseMeta,
        count: int,
        prompt: Prompt,
        scripted: Scripted,
    ) -> None:
        """Sleeps until the engine has run `count` prompts; `scripted` may add delays.

        EngineError without room for the first prompt; the others wait for room. CallerLeft when the client
        has left.
        """
        pipeline = self.pipeline
        first = EngineRequest(
            request_id=meta.id,
            index=0,
            model=meta.model,
            prompt_ids=prompt(0),
            echo_text="",
            max_tokens=0,
            limited=False,
            arrival_s=context.arrival_s,
            adapter=meta.model if meta.model in pipeline.builder.adapters else None,
            priority=priority_of(context, request.priority),
            cache_salt=request.cache_salt,
            together=count,
            observers=context.observers,
            delays=scripted.delays(context),
        )
        load, connection = pipeline.responder.load, context.connection
        prompts = PromptQueue(pipeline.responder.engine)
        load.begin()
        if connection is not None:
            connection.watch(prompts.leave)
        try:
            for index in self.paced(range(0, count, GROUP)):
                group = range(index, min(index + GROUP, count))
                prompts.put([first if at == 0 else _of(first, at, prompt(at)) for at in group])
            prompts.wait(1)
        finally:
            load.end()
            if connection is not None:
                connection.unwatch()
            prompts.abort()


class PromptQueue:
    """Submits the prompts of one request, as many at a time as the engine has room for."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._error: Exception | None = None
        self._handles: dict[int, Handle] = {}
        """Handles of unfinished groups, by the index of the first prompt."""
        self._unfinished = 0
        self._bell = Bell()

    def put(self, requests: Sequence[EngineRequest]) -> None:
        """Submits all `requests`, in parts where the engine is full. Raises the error of a failed prompt."""
        while requests:
            room = min(self._engine.room(requests[0].adapter), AT_ONCE - self._unfinished)
            if room <= 0 and self._unfinished:
                self.wait(self._unfinished)
                continue
            part, requests = requests[: max(room, 1)], requests[max(room, 1) :]
            self._submit(part)

    def wait(self, fewer_than: int) -> None:
        """Sleeps until fewer prompts are unfinished. Raises the error of a failed prompt, or CallerLeft."""
        while self._unfinished >= fewer_than and self._error is None:
            self._bell.clear()
            self._bell.wait()
        if self._error is not None:
            raise self._error

    def leave(self) -> None:
        self._error = CallerLeft()
        self._bell.set()

    def abort(self) -> None:
        for handle in list(self._handles.values()):
            handle.abort()

    def _submit(self, group: Sequence[EngineRequest]) -> None:
        if self._error is not None:
            raise self._error
        first = group[0].index

        def emit(output: EngineOutput) -> None:
            if type(output) is Failed:
                self._error = output.error
            elif type(output) is Tokens and output.finish is not None and output.finish.reason == "abort":
                self._error = Aborted()
            else:
                return
            self._bell.set()

        def over(future: Future[None]) -> None:
            self._unfinished -= len(group)
            del self._handles[first]
            self._bell.set()

        self._handles[first] = handle = self._engine.submit(group, emit)
        self._unfinished += len(group)
        handle.future.add_done_callback(over)


def _of(first: EngineRequest, index: int, ids: TokenIds) -> EngineRequest:
    return replace(first, index=index, prompt_ids=ids)


def check_count(count: int, param: str) -> None:
    """Raises ApiError 400 for more inputs than one request may have."""
    if count > MAX_INPUTS:
        raise bad_request(f"at most {MAX_INPUTS} inputs fit into one request, got {count}", param)


def not_empty(ids: TokenIds) -> TokenIds:
    """Returns the `ids` of an input. ApiError 400 when there are none."""
    if not ids:
        raise bad_request("an input has no tokens")
    return ids


def _check_dimensions(scripted: Scripted, wanted: int) -> None:
    """Raises ApiError 400 where a script's vector has another size than the request wants."""
    for index, decision in enumerate(scripted.decisions):
        vector = scripted.vector(index)
        if decision is not None and isinstance(vector, array) and len(vector) != wanted:
            place = decision.rule.place
            raise bad_request(f"{place}: its vector has {len(vector)} numbers, not {wanted}.", "dimensions")
