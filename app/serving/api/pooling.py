"""Routes of a pooling model: vectors, classes, scores (simulator.md 2.8, vllm-api.md section 8).

A handler reads a request, `_run` sleeps until the engine has run its prompts, and then numbers are
computed.
"""

from __future__ import annotations

import json
import time
from array import array
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, count, islice, pairwise, repeat
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import gevent
from msgspec import Raw, Struct, UnsetType
from msgspec.structs import replace

from app.base.clock.pause import Pace
from app.engine.core.errors import Aborted, CallerLeft, QueueFull, TooManyRequests
from app.engine.core.request import EngineRequest
from app.engine.vectors import TASKS, Bag, PoolingModel, logit, packing, sigmoid
from app.serving.api.chat.prompt import own_template
from app.serving.api.choice_state import ChoiceState
from app.serving.api.identity import ResponseMeta
from app.serving.api.pipeline import RequestPipeline, priority_of
from app.serving.api.writer import WholeWriter
from app.serving.faults.fault import Fault, damage
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.response import Response, json_response
from app.serving.http.route import BINARY_MEDIA, Handler, Route, RouteDocs, post
from app.serving.protocol import pooling as wire
from app.serving.protocol.chat import Message
from app.serving.protocol.common import ItemList, Usage, encode
from app.serving.protocol.pooling import ScoreInputs, TokenIds
from app.serving.protocol.validation import truncate
from app.text.base import ChatOptions
from app.text.files import is_matryoshka, model_config
from config.settings import ModelSettings

if TYPE_CHECKING:
    from app.serving.scripts.action import ScriptedAnswer

EMBEDDINGS = "/v1/embeddings"
COHERE = "/v2/embed"
SCORES = ("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank")

ROUTES: Mapping[str, tuple[str, ...]] = {
    "embed": (EMBEDDINGS, COHERE, "/pooling", *SCORES),
    "score": ("/pooling", "/classify", *SCORES),
    "classify": ("/pooling", "/classify"),
    "pooling": (EMBEDDINGS, COHERE, "/pooling", "/classify", *SCORES),
}
"""Routes by task, as in vLLM.

`score` is a classifier with one class, a cross-encoder; `classify` is one with several. `pooling`
is our own, for one server with all tasks. """

_SCORE_DOCS = RouteDocs(
    body=(wire.ScoreRequest,),
    example={"queries": "what is a cat", "documents": ["an animal", "a tool"]},
    answer=ItemList,
)
_RERANK_DOCS = RouteDocs(
    body=(wire.RerankRequest,),
    example={"query": "what is a cat", "documents": ["an animal", "a tool"]},
)
DOCS: Mapping[str, RouteDocs] = {
    EMBEDDINGS: RouteDocs(
        body=(wire.EmbeddingRequest,),
        example={"input": "hello"},
        answer=ItemList,
        media=BINARY_MEDIA,
    ),
    COHERE: RouteDocs(body=(wire.CohereEmbedRequest,), example={"texts": ["hello"]}),
    "/pooling": RouteDocs(
        body=(wire.PoolingRequest,),
        example={"input": "hello"},
        answer=ItemList,
        media=BINARY_MEDIA,
    ),
    "/classify": RouteDocs(
        body=(wire.ClassificationRequest,),
        example={"input": "hello"},
        answer=ItemList,
    ),
    "/score": _SCORE_DOCS,
    "/v1/score": _SCORE_DOCS,
    "/rerank": _RERANK_DOCS,
    "/v1/rerank": _RERANK_DOCS,
    "/v2/rerank": _RERANK_DOCS,
}

WANTED: Mapping[str, str] = {"embed": "embedding", "classify": "classes"}
"""Kind of output for scripts, by task; single tokens (`token_embed`, `token_classify`) have none.
"""
MOST_NUMBERS = 2**22
"""Most numbers in one answer: about 80 MB of JSON."""
BATCH = 256
"""Texts tokenized in one call; prompts of one request that run or wait in the engine at a time."""
RETRY_S = 0.01
"""Wait between two trials to have more prompts admitted, in seconds."""
COHERE_TYPES = ("float", "binary", "ubinary", "base64")
"""Forms of a vector in the order of an answer."""
INSTRUCTION_FILES = (
    ("config.json", "task_instructions"),
    ("config_sentence_transformers.json", "prompts"),
)
"""Files and keys with a model's instructions for input types, in vLLM's order."""

Rows = list[list["array[float]"]]
"""The numbers of each input: one row, or one for each token."""
Side = ScoreInputs | UnsetType
T = TypeVar("T")


def served_routes(settings: ModelSettings) -> tuple[str, ...]:
    """Returns the pooling routes of a model; a generating model has embeddings at most."""
    beside = (EMBEDDINGS,) if settings.embeddings_with_chat else ()
    routes = ROUTES.get(settings.task, beside)
    return tuple(
        path for path in routes if not (settings.mm_encoder_only and path in (EMBEDDINGS, COHERE))
    )


def routes(pipeline: RequestPipeline, settings: ModelSettings) -> list[Route]:
    runner = PoolingRunner(pipeline, settings)
    handlers: Mapping[str, Handler] = {
        EMBEDDINGS: runner.create_embeddings,
        COHERE: runner.create_cohere_embeddings,
        "/pooling": runner.create_pooling,
        "/classify": runner.create_classification,
        **{
            path: runner.create_rerank if "rerank" in path else runner.create_score
            for path in SCORES
        },
    }
    return [post(path, handlers[path], docs=DOCS[path]) for path in served_routes(settings)]


class PoolingJob(NamedTuple):
    """A request whose prompts have left the engine: its numbers can be computed."""

    meta: ResponseMeta
    inputs: Sequence[TokenIds]
    answers: Sequence[ScriptedAnswer | None]
    """Decisions of scripts about each input; empty without scripts."""
    counted_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens for `usage`, from the last script that names them, else as counted."""
        usages = [
            answer.usage
            for answer in self.answers
            if answer is not None and answer.usage is not None
        ]
        given = [usage.prompt_tokens for usage in usages if usage.prompt_tokens is not None]
        return given[-1] if given else self.counted_tokens


class PoolingRunner:
    """Answers pooling requests; `pace`, between parts of long work, gives other requests a due
    turn.
    """

    def __init__(self, pipeline: RequestPipeline, settings: ModelSettings) -> None:
        self.pipeline, self._task = pipeline, settings.task
        self._most_tokens = pipeline.limits.max_model_len
        self._pace = Pace(time.monotonic)
        classes, dimensions = (
            1 if settings.task == "score" else 2,
            settings.default_embedding_dimensions,
        )
        self._model = PoolingModel(dimensions, classes, pipeline.tokenizer, self._pace)
        self._is_matryoshka = is_matryoshka(model_config(settings.model))
        self._instructions = task_instructions(Path(settings.model))

    def create_embeddings(self, context: RequestContext) -> Response:
        """A vector for each text or conversation."""
        request = self.pipeline.decode(context, wire.EmbeddingRequest)
        return self._vectors(
            context, request, self.pool(context, request, "embd", "embed"), "embed"
        )

    def create_pooling(self, context: RequestContext) -> Response:
        """The output of the model's head for each text or for the conversation."""
        request = self.pipeline.decode(context, wire.PoolingRequest)
        if request.dimensions is not None:
            raise bad_request("dimensions are for /v1/embeddings only", "dimensions")
        own = "classify" if self._task in ("score", "classify") else "embed"
        task, possible = request.task or own, TASKS if self._task == "pooling" else (own,)
        if task not in possible:
            raise bad_request(
                f"this model does not do {task!r}, only {', '.join(possible)}", "task"
            )
        return self._vectors(context, request, self.pool(context, request, "pooling", task), task)

    def create_classification(self, context: RequestContext) -> Response:
        """The probability of each class, and the name of the most likely one."""
        request = self.pipeline.decode(context, wire.ClassificationRequest)
        job = self.pool(context, request, "classify", "classify")

        def item(index: int, ids: TokenIds, answer: ScriptedAnswer | None) -> object:
            given = None if answer is None else answer.classes
            named = given if isinstance(given, dict) else {}
            own = (
                given
                if isinstance(given, tuple)
                else self._model.classify(ids, request.use_activation)
            )
            probs = list(named.values() or own)
            best = probs.index(max(probs))
            label = list(named)[best] if named else f"LABEL_{best}"
            return {"index": index, "label": label, "probs": probs, "num_classes": len(probs)}

        items = map(item, count(), job.inputs, job.answers or repeat(None))
        return self._list(context, job, items)

    def create_score(self, context: RequestContext) -> Response:
        """A score for each pair: one text against many, or each against its counterpart."""
        request = self.pipeline.decode(context, wire.ScoreRequest)
        job, _, scores = self._compare(context, request, request.queries, request.documents)
        items = (
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(scores)
        )
        return self._list(context, job, items)

    def create_rerank(self, context: RequestContext) -> Response:
        """The documents, best first, with their scores."""
        request = self.pipeline.decode(context, wire.RerankRequest)
        job, texts, scores = self._compare(context, request, request.query, request.documents)
        best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[
            : request.top_n or None
        ]
        results = [
            {
                "index": index,
                "document": {"text": texts[index], "multi_modal": None},
                "relevance_score": scores[index],
            }
            for index in best
        ]
        usage = {"prompt_tokens": job.prompt_tokens, "total_tokens": job.prompt_tokens}
        answer = {"id": job.meta.id, "model": job.meta.model, "usage": usage, "results": results}
        return self._answer(context, answer)

    def create_cohere_embeddings(self, context: RequestContext) -> Response:
        """A vector for each text, image or mixed input, in every form that is asked for."""
        request = self.pipeline.decode(context, wire.CohereEmbedRequest)
        self.pipeline.models.resolve(request.model)
        kind, known = request.input_type or "", self._instructions
        if kind and known is not None and kind not in known:
            supported = ", ".join(sorted(known)) or "none, this model defines no instructions"
            raise bad_request(f"Unsupported input_type {kind!r}; supported: {supported}")
        asked = request.as_embedding((known or {}).get(kind, ""))
        job = self.pool(context, asked, "embd", "embed")
        most, longest = request.max_tokens, max(map(len, job.inputs))
        if request.truncate == "NONE" and most is not None and longest > most:
            raise bad_request(f"an input of {longest} tokens is longer than max_tokens={most}")
        vectors = [row for each in self.rows(asked, job, "embed") for row in each]
        types = request.embedding_types or ["float"]
        images = job.prompt_tokens if request.has_images else 0
        units = {"input_tokens": job.prompt_tokens - images, "image_tokens": images}
        answer = {
            "id": job.meta.id,
            "embeddings": {
                type: self._typed(type, vectors) for type in COHERE_TYPES if type in types
            },
            **({} if request.texts is None else {"texts": request.texts}),
            "meta": {"api_version": {"version": "2"}, "billed_units": units},
            "response_type": "embeddings_by_type",
        }
        return self._answer(context, answer)

    def _typed(self, kind: str, vectors: Sequence[array[float]]) -> Sequence[object]:
        """Returns the vectors as floats, as base64, or as a bit for each number, eight to a byte."""
        if kind == "float":
            return [row.tolist() for row in vectors]
        if kind == "base64":
            pack = packing("float32", "little", self._pace)
            return [b64encode(pack(row)).decode() for row in vectors]
        if len(vectors[0]) % 8:
            raise bad_request(
                f"binary embeddings need a multiple of 8 dimensions, got {len(vectors[0])}"
            )
        least, packed = -128 if kind == "binary" else 0, []
        for row in self._paced(vectors):
            bits = int("".join("1" if number >= 0 else "0" for number in row), 2)
            packed.append([byte + least for byte in bits.to_bytes(len(row) // 8, "big")])
        return packed

    def pool(
        self, context: RequestContext, request: wire.ClassificationRequest, prefix: str, task: str
    ) -> PoolingJob:
        """Admits a request, and sleeps until the engine has run all its inputs.

        `prefix` begins the answer's id, unless it is empty. ApiError 400 for an empty or too long
        input.
        """
        meta, conversations = self._admit(context, request, prefix), request.conversations
        check_count(len(conversations or request.texts or request.id_lists), "input")
        inputs = [self._fitted(request, ids) for ids in self._paced(self._encoded(request))]
        texts = request.texts or map(self.pipeline.tokenizer.decode, inputs)
        chats: Iterable[Sequence[Message]] = conversations
        if not conversations:
            chats = ([{"role": "user", "content": text}] for text in texts)
        wants = WANTED.get(task, task)
        answers = self._run(context, request, meta, wants, chats, iter(inputs), len(inputs))
        return PoolingJob(meta, inputs, answers, sum(map(len, inputs)))

    def _admit(
        self, context: RequestContext, request: wire.PoolingFields, prefix: str
    ) -> ResponseMeta:
        """Returns the head of the answer.

        ApiError when model, server or fields forbid the request.
        """
        for field in ("mm_processor_kwargs", "media_io_kwargs"):
            if getattr(request, field, None):
                raise bad_request(f"{field} is for models that take more than text.", field)
        name, identity = (
            self.pipeline.models.resolve(request.model, param=None),
            self.pipeline.identity,
        )
        self.pipeline.responder.engine.check_accepting(1)
        keep, most = request.truncate_prompt_tokens, self._most_tokens
        width: int | None = getattr(request, "dimensions", None)
        if keep is not None and keep > most:
            raise bad_request(
                f"truncate_prompt_tokens={keep} is more than the context of {most} tokens"
            )
        if width is not None and not self._is_matryoshka:
            raise bad_request(
                "The served model has no Matryoshka embeddings: dimensions must be unset."
            )
        if width is not None and not 1 <= width <= wire.MAX_DIMENSIONS:
            raise bad_request(f"dimensions must be from 1 to {wire.MAX_DIMENSIONS}, got {width}")
        if not prefix:
            return ResponseMeta(
                request.request_id or identity.fresh_id(), identity.now_s(), name, ""
            )
        return identity.response_meta(prefix, context, request.request_id, name)

    def _encoded(self, request: wire.ClassificationRequest) -> Iterator[TokenIds]:
        tokenizer, kwargs = self.pipeline.tokenizer, request.chat_template_kwargs
        if request.conversations:
            options = ChatOptions(
                add_generation_prompt=request.add_generation_prompt,
                continue_final_message=request.continue_final_message,
                add_special_tokens=bool(request.add_special_tokens),
                chat_template=own_template(request.chat_template, kwargs, self.pipeline.chat_rules),
                chat_template_kwargs=kwargs,
            )
            yield from (tokenizer.encode_chat(chat, options) for chat in request.conversations)
        bounded = request.truncate_prompt_tokens is None
        yield from self._tokens(request.texts, bool(request.add_special_tokens), bounded)
        for ids in request.id_lists:
            tokenizer.check_ids(ids)
            yield ids

    def _tokens(self, texts: Sequence[str], special: bool, bounded: bool) -> Iterator[TokenIds]:
        """Yields the ids of each text. With `bounded`, ApiError 400 before work on a long one."""
        for start in range(0, len(texts), BATCH):
            batch = texts[start : start + BATCH]
            for text in batch if bounded else ():
                self.pipeline.check_text(text)
            yield from self.pipeline.tokenizer.encode_many(batch, special)

    def _fitted(self, request: wire.PoolingFields, ids: TokenIds) -> TokenIds:
        """Returns the part of `ids` that is kept.

        ApiError 400 for an input that is empty or too long.
        """
        keep = request.truncate_prompt_tokens
        keep = self._most_tokens if keep == -1 else keep
        kept = truncate(ids, keep, request.truncation_side, self._most_tokens)
        if not kept:
            raise bad_request("an input has no tokens")
        return kept

    def _compare(
        self, context: RequestContext, request: wire.ScoringRequest, one: Side, other: Side
    ) -> tuple[PoolingJob, Sequence[str], list[float]]:
        """Returns documents and scores of all pairs. ApiError 400 for texts without pairs.

        A cross-encoder reads each pair as one prompt, other models each text on its own. Scores
        compare whole texts, also where prompts are truncated.
        """
        meta = self._admit(context, request, "score")
        queries, first = self._side(request, one, "max_tokens_per_query")
        documents, second = self._side(request, other, "max_tokens_per_doc")
        if len(queries) not in (1, len(documents)) or not documents:
            raise bad_request(
                "one text goes with one or many, many with as many; there must be at least one"
            )
        times, parts = (
            len(documents) // len(queries),
            [(ids, list[int]()) for ids in (*first, *second)],
        )
        if self._task == "score":
            parts = list(zip(first * times, second, strict=True))

        def prompts() -> Iterator[TokenIds]:  # together they may be much longer than their texts
            return (self._fitted(request, before + behind) for before, behind in self._paced(parts))

        tokens = sum(map(len, prompts()))
        chats: Iterable[Sequence[Message]] = (
            [{"role": "user", "content": query}, {"role": "document", "content": text}]
            for query, text in zip(queries * times, documents, strict=True)
        )
        answers = self._run(context, request, meta, "score", chats, prompts(), len(parts))
        bags, scores = [Bag(ids) for ids in first] * times, list[float]()
        for bag, ids, answer in zip(
            bags, self._paced(second), answers or repeat(None), strict=False
        ):
            score = logit(bag, Bag(ids))
            score = score if request.use_activation is False else sigmoid(score)
            scores.append(score if answer is None or answer.score is None else answer.score)
        return PoolingJob(meta, (), answers, tokens), documents, scores

    def _side(
        self, request: wire.ScoringRequest, inputs: Side, name: str
    ) -> tuple[list[str], list[TokenIds]]:
        """Returns the texts of one side, and their ids, cut to the limit in the field `name`; 0: no
        limit.

        ApiError 400 for content parts, which only multimodal models read.
        """
        given, limit = inputs if isinstance(inputs, list) else [inputs], getattr(request, name)
        texts = [text for text in given if isinstance(text, str)]
        if len(texts) < len(given):
            raise bad_request("parts of content are for models that take more than text")
        check_count(len(texts), "documents")
        if not 0 <= limit < self._most_tokens:
            raise bad_request(
                f"{name} must be at least 0 and below {self._most_tokens}, got {limit}"
            )
        bounded = not limit and request.truncate_prompt_tokens is None
        return texts, [
            ids[: limit or None] for ids in self._paced(self._tokens(texts, True, bounded))
        ]

    def _run(
        self,
        context: RequestContext,
        request: wire.PoolingFields,
        meta: ResponseMeta,
        wants: str,
        chats: Iterable[Sequence[Message]],
        prompts: Iterator[TokenIds],
        num_prompts: int,
    ) -> list[ScriptedAnswer | None]:
        """Sleeps until the engine has run all prompts, as many at a time as it has room for.

        Returns decisions of scripts about each chat; delays are the longest answer's, and a
        fault's. EngineError without room for the first prompt. CallerLeft when the client has left.
        """
        scripts, engine = self.pipeline.scripts, self.pipeline.responder.engine
        model, is_first = request.model or meta.model, True
        answers = [] if scripts is None else scripts.pooled(chats, wants, model, context)
        fault = context.kept(Fault)  # perhaps a script's
        longest_s = max(
            (answer.reply.first_token_s for answer in answers if answer is not None), default=0.0
        )
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
            num_choices=num_prompts,
            observers=context.observers,
            delays=(*((0, longest_s),) * bool(longest_s), *(() if fault is None else fault.delays)),
        )
        while group := list(
            self._paced(islice(prompts, max(1, min(engine.room(first.adapter), BATCH))))
        ):
            requests = [replace(first, index=at, prompt_ids=each) for at, each in enumerate(group)]
            while not self._has_run(requests, is_first, context):
                gevent.sleep(RETRY_S)
            is_first = False
        return answers

    def _has_run(
        self, requests: Sequence[EngineRequest], is_first: bool, context: RequestContext
    ) -> bool:
        """Sleeps until the engine has run the prompts.

        Returns False where others have taken the room.
        """
        writer = WholeWriter(len(requests), _check_ends)
        try:
            body = self.pipeline.responder.collect(requests, writer, context.connection)
        except (QueueFull, TooManyRequests):
            if is_first:
                raise
            return False
        if body is None:
            raise CallerLeft()
        return True

    def rows(self, request: wire.ClassificationRequest, job: PoolingJob, task: str) -> Rows:
        """Returns the output of `task` for each input, or the row that a script decides.

        Texts are embedded as they came, or decoded where they came as tokens or were truncated.
        ApiError 400 for more numbers than one answer holds.
        """
        model, activation = self._model, request.use_activation
        width: int | None = getattr(request, "dimensions", None)
        scripted = list(map(_scripted, job.answers)) or [None] * len(job.inputs)
        if width is not None and any(
            isinstance(own, array) and len(own) != width for own in scripted
        ):
            raise bad_request(
                f"A script gives a vector of other dimensions than {width}.", "dimensions"
            )
        numbers = sum(
            len(own) if isinstance(own, array) else width or model.numbers(task, len(ids))
            for own, ids in zip(scripted, job.inputs, strict=True)
        )
        if numbers > MOST_NUMBERS:
            raise bad_request(f"the answer would have {numbers} numbers, more than {MOST_NUMBERS}")
        texts, rows = request.texts if request.truncate_prompt_tokens is None else (), Rows()
        for index, (own, ids) in enumerate(zip(scripted, job.inputs, strict=True)):
            if own is None and task == "embed":
                own = texts[index] if texts else model.tokenizer.decode(ids)
            if isinstance(own, str):
                own = model.vector(own, activation, width)
            rows.append(list(model.pool(task, ids, activation)) if own is None else [own])
        return rows

    def _vectors(
        self, context: RequestContext, request: wire.EncodedRequest, job: PoolingJob, task: str
    ) -> Response:
        """Returns the output of `task` in the request's encoding."""
        rows, nested, form = (
            self.rows(request, job, task),
            task.startswith("token"),
            request.encoding_format,
        )
        field, kind = (
            ("data", "pooling") if isinstance(request, wire.PoolingRequest) else ("embedding",) * 2
        )
        values: Iterable[object] = (
            [row.tolist() for row in each] if nested else each[0].tolist() for each in rows
        )
        if form != "float":
            pack = packing(request.embed_dtype, request.endianness, self._pace)
            packed = [b"".join(map(pack, each)) for each in rows]
            values = (b64encode(data).decode() for data in packed)
        if form in ("float", "base64"):
            items = (
                {"index": index, "object": kind, field: value} for index, value in enumerate(values)
            )
            return self._list(context, job, items)
        headers = dict(self.pipeline.responder.headers)
        if form == "bytes":
            shapes = [(len(each), len(each[0])) if nested else (len(each[0]),) for each in rows]
            headers["metadata"] = _metadata(request, job, shapes, packed)
        response = Response(b"".join(packed), 200, headers, content_type="application/octet-stream")
        return damage(response, context.kept(Fault), context)

    def _list(self, context: RequestContext, job: PoolingJob, items: Iterable[object]) -> Response:
        data, tokens, meta = (
            [Raw(encode(item)) for item in self._paced(items)],
            job.prompt_tokens,
            job.meta,
        )
        usage = Usage(tokens, tokens, 0, None, None)
        answer = ItemList(
            id=meta.id, created=meta.created, model=meta.model, data=data, usage=usage
        )
        return self._answer(context, answer)

    def _answer(self, context: RequestContext, answer: object) -> Response:
        response = json_response(answer, 200, self.pipeline.responder.headers)
        return damage(response, context.kept(Fault), context)

    def _paced(self, items: Iterable[T]) -> Iterator[T]:
        for item in items:
            self._pace()
            yield item


def _check_ends(prompts: Sequence[ChoiceState]) -> Struct:
    """Raises Aborted for a prompt that an operator has ended."""
    if any(prompt.finish.reason == "abort" for prompt in prompts):
        raise Aborted()
    return Struct()


def _scripted(answer: ScriptedAnswer | None) -> array[float] | str | None:
    """Returns the row that a script gives an input; a text to embed instead; or None."""
    if answer is None:
        return None
    if (classes := answer.classes) is not None:
        return array("f", classes.values() if isinstance(classes, dict) else classes)
    return array("f", answer.embedding) if isinstance(answer.embedding, tuple) else answer.embedding


def check_count(given: int, param: str) -> None:
    """Raises ApiError 400 for no inputs, or more than one request may have."""
    if not given:
        raise bad_request("at least one input is needed")
    if given > wire.MAX_INPUTS:
        raise bad_request(
            f"at most {wire.MAX_INPUTS} inputs fit into one request, got {given}", param
        )


def _metadata(
    request: wire.EncodedRequest,
    job: PoolingJob,
    shapes: Iterable[tuple[int, ...]],
    packed: Iterable[bytes],
) -> str:
    """Returns the header of a body of bytes:

    where the numbers of each input are, as JSON in ASCII.
    """
    same = {"embed_dtype": request.embed_dtype, "endianness": request.endianness}
    places = zip(count(), pairwise(accumulate(map(len, packed), initial=0)), shapes, strict=False)
    items = [
        {"index": index, **same, "start": start, "end": end, "shape": shape}
        for index, (start, end), shape in places
    ]
    meta, usage = job.meta, {"prompt_tokens": job.prompt_tokens, "total_tokens": job.prompt_tokens}
    told = {
        "id": meta.id,
        "created": meta.created,
        "model": meta.model,
        "data": items,
        "usage": usage,
    }
    return json.dumps(told)


def task_instructions(folder: Path) -> Mapping[str, str] | None:
    """Returns the instruction of each input type in a model's folder; None without the folder."""
    if not folder.is_dir():
        return None
    for name, key in INSTRUCTION_FILES:
        try:
            found = json.loads((folder / name).read_bytes()).get(key)
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(found, dict) and found:
            return {kind: text for kind, text in found.items() if isinstance(text, str)}
    return {}
