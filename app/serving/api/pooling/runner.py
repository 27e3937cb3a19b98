"""Runs pooling requests: token ids, decisions of scripts, a turn in the engine."""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import gevent
from msgspec import Struct
from msgspec.structs import replace

from app.base.clock.pause import Pace
from app.engine.core.errors import Aborted, CallerLeft, QueueFull, TooManyRequests
from app.engine.core.request import EngineRequest
from app.engine.vectors import PoolingModel
from app.serving.api.chat.prompt import own_template
from app.serving.api.identity import ResponseMeta
from app.serving.api.pipeline import RequestPipeline, priority_of
from app.serving.api.responder import ResponseCollector
from app.serving.api.writer import ChoiceState, WholeWriter
from app.serving.faults.injector import fault_of
from app.serving.http.connection import Connection
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.protocol.messages import Message
from app.serving.protocol.pooling import (
    MAX_DIMENSIONS,
    MAX_INPUTS,
    ClassificationRequest,
    EmbeddingRequest,
    PoolingFields,
    TokenIds,
)
from app.serving.protocol.validation import truncate
from app.text import ChatOptions
from app.text.files import is_matryoshka, model_config
from config.settings import ModelSettings

if TYPE_CHECKING:
    from app.serving.scripts.action import ScriptedAnswer

BATCH = 256
"""Texts tokenized in one call; prompts of one request that run or wait in the engine at a time."""
RETRY_S = 0.01
"""Wait between two trials to have more prompts admitted, in seconds."""

Answers = Sequence["ScriptedAnswer | None"]
"""Decisions of scripts about each input; None where scripts decide nothing."""
T = TypeVar("T")


class PoolingJob(NamedTuple):
    """A request whose prompts have left the engine: its numbers can be computed."""

    meta: ResponseMeta
    inputs: Sequence[TokenIds]
    answers: Answers

    @property
    def prompt_tokens(self) -> int:
        return told_tokens(self.answers, sum(map(len, self.inputs)))

    def classes(self, index: int) -> tuple[list[float], list[str]] | None:
        """Returns probabilities of an input's classes by a script, and the names of the classes, if any."""
        answer = self.answers[index]
        given = None if answer is None else answer.classes
        if isinstance(given, dict):
            return list(given.values()), list(given)
        return None if given is None else (list(given), [])

    def scripted(self, index: int) -> array[float] | str | None:
        """Returns the row that a script gives an input; a text to embed instead; or None."""
        if (classes := self.classes(index)) is not None:
            return array("f", classes[0])
        answer = self.answers[index]
        given = None if answer is None else answer.embedding
        return array("f", given) if isinstance(given, tuple) else given


def told_tokens(answers: Answers, counted: int) -> int:
    """Returns the prompt tokens for `usage`, from the last script that names them, else `counted`."""
    usages = [answer.usage for answer in answers if answer is not None and answer.usage is not None]
    return next((told.prompt_tokens for told in reversed(usages) if told.prompt_tokens is not None), counted)


class PoolingRunner:
    """Reads pooling requests, and waits for their turn in the engine.

    `pace` is called between parts of long work, and gives other requests a turn when one is due.
    """

    def __init__(self, pipeline: RequestPipeline, settings: ModelSettings) -> None:
        self.pipeline = pipeline
        self.most_tokens = pipeline.limits.max_model_len
        self.pace = Pace(time.monotonic)
        classes, dimensions = 1 if settings.task == "score" else 2, settings.default_embedding_dimensions
        self.model = PoolingModel(dimensions, classes, pipeline.tokenizer, self.pace)
        self._is_matryoshka = is_matryoshka(model_config(settings.model))

    def paced(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            self.pace()
            yield item

    def admit(self, request: PoolingFields) -> str:
        """Returns the model's name. ApiError when model, server or fields forbid the request."""
        for name in ("mm_processor_kwargs", "media_io_kwargs"):
            if getattr(request, name, None):
                raise bad_request(f"{name} is for models that take more than text.", name)
        name = self.pipeline.models.resolve(request.model, param=None)
        self.pipeline.responder.engine.check_accepting(1)
        keep, most = request.truncate_prompt_tokens, self.most_tokens
        if keep is not None and keep > most:
            raise bad_request(f"truncate_prompt_tokens={keep} is more than the context of {most} tokens")
        if isinstance(request, EmbeddingRequest) and request.dimensions is not None:
            if not self._is_matryoshka:
                raise bad_request("The served model has no Matryoshka embeddings: dimensions must be unset.")
            if not 1 <= request.dimensions <= MAX_DIMENSIONS:
                raise bad_request(f"dimensions must be from 1 to {MAX_DIMENSIONS}, got {request.dimensions}")
        return name

    def pool(
        self, context: RequestContext, request: ClassificationRequest, prefix: str, wants: str
    ) -> PoolingJob:
        """Admits a request, and sleeps until the engine has run all its inputs.

        Before, scripts decide about `wants`. `prefix` begins the answer's id, unless it is empty. Raises
        ApiError for a fault of a script, and the errors of `go_through`.
        """
        name, identity = self.admit(request), self.pipeline.identity
        inputs = self._inputs(request)
        if prefix:
            meta = identity.response_meta(prefix, context, request.request_id, name)
        else:
            meta = ResponseMeta(request.request_id or identity.fresh_id(), identity.now_s(), name, "")
        wanted = request.dimensions if isinstance(request, EmbeddingRequest) else None
        chats: Iterable[Sequence[Message]] = request.conversations
        if not chats:
            texts = request.texts or map(self.pipeline.tokenizer.decode, inputs)
            chats = ([{"role": "user", "content": text}] for text in texts)
        answers = self.decide(chats, len(inputs), wants, request.model or name, context, wanted)
        self.go_through(context, request, meta, len(inputs), inputs, answers)
        return PoolingJob(meta, inputs, answers)

    def _inputs(self, request: ClassificationRequest) -> list[TokenIds]:
        """Returns the token ids of each input, truncated. ApiError 400 for an empty or too long input."""
        count = len(request.conversations or request.texts or request.id_lists)
        if not count:
            raise bad_request("at least one input is needed")
        check_count(count, "input")
        return [self.fitted(request, ids) for ids in self.paced(self._encoded(request))]

    def _encoded(self, request: ClassificationRequest) -> Iterator[TokenIds]:
        tokenizer = self.pipeline.tokenizer
        if request.conversations:
            options = ChatOptions(
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
                add_special_tokens=bool(request.add_special_tokens),
                chat_template=own_template(
                    request.chat_template, request.chat_template_kwargs, self.pipeline.chat_rules
                ),
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
        """The part of `ids` that the request keeps. ApiError 400 for an input that is empty or too long."""
        keep = request.truncate_prompt_tokens
        keep = self.most_tokens if keep == -1 else keep
        kept = truncate(ids, keep, request.truncation_side, self.most_tokens)
        if not kept:
            raise bad_request("an input has no tokens")
        return kept

    def decide(
        self,
        chats: Iterable[Sequence[Message]],
        count: int,
        wants: str,
        model: str,
        context: RequestContext,
        dimensions: int | None = None,
    ) -> Answers:
        """Returns decisions of scripts about `count` inputs.

        ApiError for a fault of a script, and for a vector of other `dimensions` than the request wants.
        """
        if self.pipeline.scripts is None:
            return [None] * count
        from app.serving.api.script import messages_of  # imports regexes, too, which few servers need

        answers: list[ScriptedAnswer | None] = []
        for decision in self.pipeline.scripts.pooled(map(messages_of, chats), wants, model, context):
            answers.append(None if decision is None else decision.answer)
            given = None if answers[-1] is None else answers[-1].embedding
            size = len(given) if isinstance(given, tuple) else dimensions
            if decision is not None and dimensions is not None and size != dimensions:
                text = f"{decision.rule.place}: its vector has {size} numbers, not {dimensions}."
                raise bad_request(text, "dimensions")
        return answers

    def go_through(
        self,
        context: RequestContext,
        request: PoolingFields,
        meta: ResponseMeta,
        count: int,
        prompts: Iterable[TokenIds],
        answers: Answers,
    ) -> None:
        """Sleeps until the engine has run `count` prompts, as many at a time as it has room for.

        The delays are the longest one of all `answers`, and a fault's. EngineError without room for the
        first prompt. CallerLeft when the client has left.
        """
        fault, engine = fault_of(context), self.pipeline.responder.engine
        longest_s = max((answer.reply.first_token_s for answer in answers if answer is not None), default=0.0)
        first = EngineRequest(
            request_id=meta.id,
            index=0,
            model=meta.model,
            prompt_ids=(),
            echo_text="",
            max_tokens=0,
            limited=False,
            arrival_s=context.arrival_s,
            adapter=meta.model if meta.model in self.pipeline.models.adapters else None,
            priority=priority_of(context, request.priority),
            cache_salt=request.cache_salt,
            num_choices=count,
            observers=context.observers,
            delays=(*((0, longest_s),) * bool(longest_s), *(() if fault is None else fault.delays)),
        )
        load, prompts, is_first = self.pipeline.responder.load, iter(prompts), True
        load.begin()
        try:
            for ids in prompts:
                room = max(1, min(engine.room(first.adapter), BATCH))
                group = self.paced(chain([ids], islice(prompts, room - 1)))
                requests = [replace(first, index=at, prompt_ids=each) for at, each in enumerate(group)]
                while not self._run(requests, is_first, context.connection):
                    gevent.sleep(RETRY_S)
                is_first = False
        finally:
            load.end()

    def _run(self, requests: Sequence[EngineRequest], is_first: bool, connection: Connection | None) -> bool:
        """Sleeps until the engine has run the requests. Raises the first error.

        Returns False where others have taken the room; EngineError if these are a client's first prompts.
        """
        try:
            collector = ResponseCollector(
                self.pipeline.responder.engine, requests, WholeWriter(len(requests), _check_ends)
            )
        except (QueueFull, TooManyRequests):
            if is_first:
                raise
            return False
        if collector.unfinished:
            collector.wait(connection)
        if collector.gone:
            raise CallerLeft()
        collector.body()
        return True


def _check_ends(prompts: Sequence[ChoiceState]) -> Struct:
    """Raises Aborted for a prompt that an operator has ended."""
    if any(prompt.finish.reason == "abort" for prompt in prompts):
        raise Aborted()
    return Struct()


def check_count(count: int, param: str) -> None:
    """Raises ApiError 400 for more inputs than one request may have."""
    if count > MAX_INPUTS:
        raise bad_request(f"at most {MAX_INPUTS} inputs fit into one request, got {count}", param)
