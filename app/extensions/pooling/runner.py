"""Runs the prompts of pooling requests in the engine, and computes their numbers.

`PoolingRunner.run` admits a request and sleeps until the engine has run its prompts; then numbers
are computed.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, repeat
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import gevent
from msgspec import UnsetType

from app.core.api.chat.prompt import request_template
from app.core.api.headers import PRIORITY_HEADER, priority_of
from app.core.api.identity import ResponseMeta
from app.core.api.pipeline import RequestPipeline
from app.core.api.writer import ResponseWriter
from app.core.base.callers import claim_memory
from app.core.base.clock.pause import Pace
from app.core.base.overload import ClientLeftError
from app.core.engine.errors import (
    AbortedError,
    QueueFullError,
    TooManyRequestsError,
)
from app.core.engine.outputs import EngineOutput, Tokens
from app.core.engine.request import EngineRequest
from app.core.protocol.chat import Message
from app.core.protocol.validation import check_media_options, check_prompt_length, truncate
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import ApiError, bad_request, not_found
from app.core.text.base import ChatOptions, KeptTokens
from app.core.text.files import model_config
from app.extensions.pooling import protocol as wire
from app.extensions.pooling.late_chunking import chunk_ranges
from app.extensions.pooling.protocol import ScoreInputs, TokenIds
from app.extensions.pooling.rules import PoolingRules
from app.extensions.pooling.score_parts import ScoreParts
from app.extensions.pooling.vectors import FLOAT_BYTES, Bag, PoolingModel, logit, sigmoid
from config.settings import ModelSettings

if TYPE_CHECKING:
    from app.core.api.reply_rules import ScriptedAnswer

OUTPUT_KINDS: Mapping[str, str] = {"embed": "embedding", "classify": "classes"}
"""Kind of output for scripts, by task; scripts cannot set outputs of single tokens."""
MAX_NUMBERS = 2**22
"""Most numbers in one answer: about 80 MB of JSON."""
WRITTEN_BYTES = 20
"""Usual memory of a number's text, in bytes: 10, in a part of the answer and in the answer."""
BATCH_SIZE = 256
"""Texts tokenized in one call; prompts of one request that run or wait in the engine at a time."""
LONG_BATCH = 1 << 15
"""Characters of a batch above which its texts are tokenized one by one, no further than needed."""
RETRY_S = 0.01
"""Wait between two attempts to have more prompts admitted, in seconds."""

Rows = list[list["array[float]"]]
"""The numbers of each input: one row, or one for each token."""
Side = ScoreInputs | UnsetType
T = TypeVar("T")


class PoolingJob(NamedTuple):
    """A request whose prompts have left the engine: its numbers can be computed."""

    meta: ResponseMeta
    inputs: Sequence[TokenIds]
    answers: Sequence[ScriptedAnswer | None]
    """Decisions of scripts about each input; empty without scripts."""
    counted_tokens: int
    claimed_numbers: int = 0
    """Numbers of the answer whose memory is claimed."""

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens for `usage`, from the last script that sets them, else as counted."""
        prompt_tokens = self.counted_tokens
        for answer in self.answers:
            if answer is None or answer.usage is None:
                continue
            if answer.usage.prompt_tokens is not None:
                prompt_tokens = answer.usage.prompt_tokens
        return prompt_tokens


class Comparison(NamedTuple):
    """A request for scores, and the score of each document."""

    job: PoolingJob
    scores: list[float]


class PromptBatch(NamedTuple):
    """Prompts of one request, on their way to the engine."""

    meta: ResponseMeta
    output_kind: str
    """Kind of output for scripts."""
    conversations: Iterable[Sequence[Message]]
    """Messages that scripts match, for each prompt or pair."""
    prompts: Iterator[TokenIds]
    prompt_count: int


class PromptWriter(ResponseWriter):
    """Notes whether prompts have run to their ends; their numbers are computed afterwards."""

    def __init__(self) -> None:
        super().__init__(0)
        self._is_aborted = False

    def collect(self, output: EngineOutput) -> None:
        """Notes a prompt that an operator has ended."""
        if type(output) is Tokens and output.finish is not None:
            self._is_aborted |= output.finish.reason == "abort"

    def body(self) -> bytes:
        """Returns an empty body.

        Raises:
            AbortedError: for a prompt that an operator has ended.
        """
        if self._is_aborted:
            raise AbortedError()
        return b""


class PoolingRunner:
    """Runs pooling requests; `pace`, called within long work, gives other requests their turn."""

    def __init__(self, pipeline: RequestPipeline, settings: ModelSettings) -> None:
        self.pipeline = pipeline
        self.encode = pipeline.version.shape.encode
        self.pace = Pace(time.monotonic)
        self.model = PoolingModel(
            settings.default_embedding_dimensions,
            1 if settings.task == "score" else len(settings.class_labels),
            pipeline.tokenizer,
            self.pace,
        )
        self._task = settings.task
        self._parts = ScoreParts(settings, pipeline.version.version.release)
        self._counts_pairs = pipeline.version.rules(PoolingRules).counts_pairs
        self._max_tokens = pipeline.limits.max_model_len
        self._is_matryoshka = is_matryoshka(model_config(settings.model))

    def run(
        self, context: RequestContext, request: wire.PromptRequest, prefix: str, task: str
    ) -> PoolingJob:
        """Admits a request, and sleeps until the engine has run all its inputs.

        The answer's id starts with `prefix`, unless it is empty.

        Raises:
            ApiError: 400 for an empty input, or one that is too long.
        """
        meta = self._admit(context, request, prefix)
        request.check_prompts()
        conversations = request.conversations
        texts = request.texts
        count = len(conversations or texts or request.id_lists)
        check_count(count, "input", missing="You must pass at least one prompt")
        claimed_numbers = 0
        if self.pipeline.scripts is None:
            # A server without room for the answer rejects the request before it reads the texts.
            width: int | None = getattr(request, "dimensions", None)
            claimed_numbers = count * (width or self.model.numbers(task, 1))
            check_numbers(claimed_numbers)
        inputs = [self._fit(request, ids) for ids in self.paced(self._encode_inputs(request))]
        chats: Iterable[Sequence[Message]] = conversations
        if not conversations:
            prompts = texts or map(self.pipeline.tokenizer.decode, inputs)
            chats = ([{"role": "user", "content": text}] for text in prompts)
        batch = PromptBatch(
            meta=meta,
            output_kind=OUTPUT_KINDS.get(task, task),
            conversations=chats,
            prompts=iter(inputs),
            prompt_count=len(inputs),
        )
        answers = self._run_batch(context, request, batch)
        return PoolingJob(meta, inputs, answers, sum(map(len, inputs)), claimed_numbers)

    def compare(
        self, context: RequestContext, request: wire.ScoringRequest, left: Side, right: Side
    ) -> Comparison:
        """Returns the scores of all pairs; the texts on the right are the documents.

        A cross-encoder reads each pair as one prompt, other models each text on its own. Scores
        compare whole texts, also where prompts are truncated.

        Raises:
            ApiError: 400 for texts without pairs.
        """
        meta = self._admit(context, request, "score")
        queries, query_ids = self._encode_side(request, left, "max_tokens_per_query")
        documents, document_ids = self._encode_side(request, right, "max_tokens_per_doc")
        if len(queries) not in (1, len(documents)) or not documents:
            raise bad_request("Input lengths must be either 1:1, 1:N or N:N")
        repetitions = len(documents) // len(queries)
        parts: list[tuple[TokenIds, TokenIds]] = [(ids, []) for ids in (*query_ids, *document_ids)]
        if self._task == "score":
            parts = list(zip(query_ids * repetitions, document_ids, strict=True))

        def prompts() -> Iterator[TokenIds]:
            # A generator, as all prompts together may be much longer than their texts.
            for query, document in self.paced(parts):
                yield self._fit(request, query + document)

        lengths = [*map(len, prompts())]
        tokens = sum(lengths)
        if self._counts_pairs and self._task != "score":
            query_lengths = lengths[: len(queries)]
            pairs = zip(query_lengths * repetitions, lengths[len(queries) :], strict=True)
            tokens = sum(query + 1 + document for query, document in pairs)
        chats: Iterable[Sequence[Message]] = (
            [{"role": "user", "content": query}, {"role": "document", "content": text}]
            for query, text in zip(queries * repetitions, documents, strict=True)
        )
        batch = PromptBatch(
            meta=meta,
            output_kind="score",
            conversations=chats,
            prompts=prompts(),
            prompt_count=len(parts),
        )
        answers = self._run_batch(context, request, batch)
        bags = [Bag(ids) for ids in self.paced(query_ids)] * repetitions
        scores: list[float] = []
        for bag, ids, answer in zip(
            bags, self.paced(document_ids), answers or repeat(None), strict=False
        ):
            score = logit(bag, Bag(ids))
            if request.use_activation is not False:
                score = sigmoid(score)
            if answer is not None and answer.score is not None:
                score = answer.score
            scores.append(score)
        return Comparison(PoolingJob(meta, (), answers, tokens), scores)

    def rows(self, request: wire.PromptRequest, job: PoolingJob, task: str) -> Rows:
        """Returns the output of `task` for each input, or the row that a script sets.

        Texts are embedded as they came, or decoded where they came as tokens or were truncated.

        Raises:
            ApiError: 400 for more numbers than one answer holds.
        """
        width: int | None = getattr(request, "dimensions", None)
        outputs = list(map(scripted_output, job.answers)) or [None] * len(job.inputs)
        self._check_numbers(job, outputs, task, width)
        texts = request.texts if request.truncate_prompt_tokens is None else ()
        rows: Rows = []
        for index, (output, ids) in enumerate(self.paced(zip(outputs, job.inputs, strict=True))):
            if isinstance(output, array):
                rows.append([output])
            elif output is None and task != "embed":
                rows.append(list(self.model.pool(task, ids, request.use_activation)))
            else:
                text = output
                if text is None and texts:
                    text = texts[index]
                if text is None:
                    text = self.model.tokenizer.decode(ids)
                rows.append([self.model.vector(text, request.use_activation, width)])
        return rows

    def chunk_rows(self, job: PoolingJob, chunk_size: int, activation: bool | None) -> Rows:
        """Returns a vector for each chunk of each input.

        Raises:
            ApiError: 400 for more numbers than one answer holds.
        """
        chunk_count = sum(len(chunk_ranges(len(ids), chunk_size)) for ids in job.inputs)
        check_numbers(chunk_count * self.model.dimensions, job.claimed_numbers)
        return [list(self.model.chunk_vectors(ids, chunk_size, activation)) for ids in job.inputs]

    def paced(self, items: Iterable[T]) -> Iterator[T]:
        """Yields the items, and pauses between them when other requests are due."""
        for item in items:
            self.pace()
            yield item

    def _admit(
        self, context: RequestContext, request: wire.PoolingFields, prefix: str
    ) -> ResponseMeta:
        """Returns the identity of the answer.

        Raises:
            ApiError: where model, server or fields forbid the request.
        """
        check_media_options(request)
        try:
            model = self.pipeline.models.resolve(request.model)
        except ApiError:  # vLLM names no other models here
            raise not_found(f"The model `{request.model}` does not exist.") from None
        identity = self.pipeline.identity
        self.pipeline.responder.engine.check_accepting(1)
        max_tokens = request.truncate_prompt_tokens
        if max_tokens is not None and max_tokens > self._max_tokens:
            raise bad_request(
                "truncate_prompt_tokens value is greater than max_model_len. "
                "Please request a smaller truncation size."
            )
        width: int | None = getattr(request, "dimensions", None)
        if width is not None and not self._is_matryoshka:
            name = self.pipeline.models.names[0]
            raise bad_request(
                f"Model {name!r} does not support Matryoshka embeddings; dimensions must be unset "
                f"(received dimensions={width})."
            )
        if width is not None and not 1 <= width <= wire.MAX_DIMENSIONS:
            raise bad_request(
                f"dimensions must be between 1 and {wire.MAX_DIMENSIONS}, got {width}"
            )
        if not prefix:
            request_id = request.request_id or identity.fresh_id()
            return ResponseMeta(request_id, identity.now_s(), model, "")
        return identity.response_meta(prefix, context, request.request_id, model)

    def _encode_inputs(self, request: wire.PromptRequest) -> Iterator[TokenIds]:
        texts = request.texts
        if texts:
            is_limited = request.truncate_prompt_tokens is None
            add_special_tokens = bool(request.add_special_tokens)
            kept = self._kept(request)
            return self._encode_texts(texts, add_special_tokens, is_limited, kept=kept)
        if isinstance(request, wire.ClassificationRequest) and request.conversations:
            return self._encode_conversations(request)
        return self._checked_ids(request.id_lists)

    def _encode_conversations(self, request: wire.ClassificationRequest) -> Iterator[TokenIds]:
        kwargs = request.chat_template_kwargs
        options = ChatOptions(
            add_generation_prompt=request.add_generation_prompt,
            continue_final_message=request.continue_final_message,
            add_special_tokens=bool(request.add_special_tokens),
            chat_template=request_template(request.chat_template, kwargs, self.pipeline.chat_rules),
            chat_template_kwargs=kwargs,
        )
        for conversation in request.conversations:
            yield self.pipeline.tokenizer.encode_chat(
                conversation, options, kept=self._kept(request)
            )

    def _kept(self, request: wire.PoolingFields) -> KeptTokens | None:
        from_end = request.truncation_side == "left"
        limits = self.pipeline.limits
        return limits.kept_tokens(request.truncate_prompt_tokens, from_end=from_end)

    def _checked_ids(self, id_lists: Sequence[TokenIds]) -> Iterator[TokenIds]:
        for ids in id_lists:
            self.pipeline.tokenizer.check_ids(ids)
            yield ids

    def _encode_texts(
        self,
        texts: Sequence[str],
        add_special_tokens: bool,
        is_limited: bool,
        *,
        kept: KeptTokens | None,
    ) -> Iterator[TokenIds]:
        """Yields the ids of each text, at least those that are `kept`.

        Raises:
            ApiError: 400 for a text that is too long, before any work, if `is_limited`.
        """
        for start in range(0, len(texts), BATCH_SIZE):
            batch = texts[start : start + BATCH_SIZE]
            if is_limited:
                for text in batch:
                    self.pipeline.check_text(text)
            # One text: `encode` remembers the ids of words, which `encode_many` does not.
            if len(batch) == 1 or sum(map(len, batch)) > LONG_BATCH:
                for text in batch:
                    yield self.pipeline.tokenizer.encode(text, add_special_tokens, kept)
            else:
                yield from self.pipeline.tokenizer.encode_many(batch, add_special_tokens)

    def _encode_side(
        self, request: wire.ScoringRequest, inputs: Side, limit_field: str
    ) -> tuple[list[str], list[TokenIds]]:
        """Returns the texts of one side, and their ids.

        The ids are cut to the limit in the request's `limit_field`; 0 is no limit.

        Raises:
            ApiError: 400 for content parts, which only multimodal models read, and for media.
        """
        items = inputs if isinstance(inputs, list) else [inputs]
        texts = [self._parts.text_of(item) for item in items]
        side = "text" if limit_field == "max_tokens_per_query" else "text_pair"
        check_count(len(texts), "documents", missing=f"At least one {side} element must be given")
        limit = getattr(request, limit_field)
        if limit < 0:
            raise bad_request(f"{limit_field} must be a non-negative integer")
        if limit >= self._max_tokens:
            raise bad_request(
                f"{limit_field} ({limit}) must be less than max_model_len ({self._max_tokens})."
            )
        is_limited = not limit and request.truncate_prompt_tokens is None
        kept = KeptTokens(limit) if limit else self._kept(request)
        id_lists = self.paced(self._encode_texts(texts, True, is_limited, kept=kept))
        return texts, [ids[: limit or None] for ids in id_lists]

    def _fit(self, request: wire.PoolingFields, ids: TokenIds) -> TokenIds:
        """Returns `ids`, truncated as the request asks.

        Raises:
            ApiError: 400 for an input that is empty or too long.
        """
        max_tokens = request.truncate_prompt_tokens
        if max_tokens is None and 0 < len(ids) <= self._max_tokens:
            return ids
        if max_tokens == -1:
            max_tokens = self._max_tokens
        fitted = truncate(ids, max_tokens, request.truncation_side)
        counts_all = self.pipeline.limits.rules.counts_prompts
        check_prompt_length(len(fitted), self._max_tokens, is_text=not counts_all)
        if not fitted:
            raise bad_request("The decoder prompt cannot be empty")
        return fitted

    def _run_batch(
        self, context: RequestContext, request: wire.PoolingFields, batch: PromptBatch
    ) -> list[ScriptedAnswer | None]:
        """Sleeps until the engine has run all prompts, as many at a time as it has room for.

        Returns the decisions of scripts about each conversation. The request is delayed by the
        longest delay of all answers, and by the delays of a fault.

        Raises:
            EngineError: without room for the first prompt.
            ClientLeftError: when the client has left.
        """
        meta = batch.meta
        scripts = self.pipeline.scripts
        answers: list[ScriptedAnswer | None] = []
        delays: tuple[tuple[int, float], ...] = ()
        if scripts is not None:
            model = request.model or meta.model
            answers = scripts.pooled(batch.conversations, batch.output_kind, model, context)
            delays = longest_delay(answers)
        adapter = None
        if meta.model in self.pipeline.models.adapters:
            adapter = meta.model
        priority = request.priority
        if PRIORITY_HEADER in context.headers:
            priority = priority_of(context, priority)
        request_of = partial(
            EngineRequest,
            request_id=meta.id,
            model=meta.model,
            echo_text="",
            max_tokens=0,
            arrival_s=context.arrival_s,
            adapter=adapter,
            priority=priority,
            cache_salt=request.cache_salt,
            num_choices=batch.prompt_count,
            observers=context.observers,
            delays=(*delays, *context.delays),  # those of a fault may come from a script
        )
        remaining = batch.prompt_count
        while remaining:
            if remaining == 1:
                prompts = list(batch.prompts)
            else:
                prompts = self._next_prompts(batch, adapter)
            requests = [
                request_of(index=index, prompt_ids=ids) for index, ids in enumerate(prompts)
            ]
            is_first = remaining == batch.prompt_count
            while not self._has_run(requests, is_first, context):
                gevent.sleep(RETRY_S)
            remaining -= len(prompts)
        return answers

    def _next_prompts(self, batch: PromptBatch, adapter: str | None) -> list[TokenIds]:
        """Returns as many prompts as the engine has room for, at least one."""
        room = self.pipeline.responder.engine.room(adapter)
        return list(self.paced(islice(batch.prompts, max(1, min(room, BATCH_SIZE)))))

    def _has_run(
        self, requests: Sequence[EngineRequest], is_first: bool, context: RequestContext
    ) -> bool:
        """Sleeps until the engine has run the prompts.

        Returns False where other requests have taken the room.
        """
        try:
            body = self.pipeline.responder.collect(requests, PromptWriter(), context.connection)
        except (QueueFullError, TooManyRequestsError):
            if is_first:
                raise
            return False
        if body is None:
            raise ClientLeftError
        return True

    def _check_numbers(
        self,
        job: PoolingJob,
        outputs: Sequence[array[float] | str | None],
        task: str,
        width: int | None,
    ) -> None:
        """Raises ApiError 400 for outputs of another width, or too many numbers together."""
        numbers = 0
        for output, ids in zip(outputs, job.inputs, strict=True):
            if not isinstance(output, array):
                numbers += width or self.model.numbers(task, len(ids))
                continue
            numbers += len(output)
            if width is not None and len(output) != width:
                raise bad_request(
                    f"An embedding in a script must have {width} dimensions.", "dimensions"
                )
        check_numbers(numbers, job.claimed_numbers)


def check_numbers(count: int, claimed: int = 0) -> None:
    """Claims the memory of the numbers of an answer, except `claimed` ones.

    Raises:
        ApiError: 400 for more numbers than one answer holds.
        MemoryFullError, MemoryExceededError: as `claim_memory`.
    """
    if count > MAX_NUMBERS:
        raise bad_request(
            f"the response would contain {count} numbers, but at most {MAX_NUMBERS} are allowed"
        )
    claim_memory((FLOAT_BYTES + WRITTEN_BYTES) * max(0, count - claimed))


def longest_delay(answers: Iterable[ScriptedAnswer | None]) -> tuple[tuple[int, float], ...]:
    """Returns the longest delay of scripts, before the first token; none without delays."""
    delays_s = [answer.reply.first_token_s for answer in answers if answer is not None]
    delay_s = max(delays_s, default=0.0)
    if not delay_s:
        return ()
    return ((0, delay_s),)


def scripted_output(answer: ScriptedAnswer | None) -> array[float] | str | None:
    """Returns the row that a script sets for an input, a text to embed instead, or None."""
    if answer is None:
        return None
    if isinstance(answer.classes, Mapping):
        return array("f", answer.classes.values())
    if answer.classes is not None:
        return array("f", answer.classes)
    if isinstance(answer.embedding, tuple):
        return array("f", answer.embedding)
    return answer.embedding


def check_count(count: int, param: str, *, missing: str) -> None:
    """Checks the number of inputs.

    Raises:
        ApiError: 400 with the message `missing` for none, and for more than a request may have.
    """
    if not count:
        raise bad_request(missing)
    if count > wire.MAX_INPUTS:
        raise bad_request(
            f"a request can have at most {wire.MAX_INPUTS} inputs, got {count}", param
        )


def is_matryoshka(model: Mapping[str, object]) -> bool:
    """Returns True for the `config.json` of a model with vectors of any length, or an empty one."""
    return not model or bool(model.get("matryoshka_dimensions") or model.get("is_matryoshka"))
