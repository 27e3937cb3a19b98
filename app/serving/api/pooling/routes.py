"""Routes of a pooling model: vectors, classes, scores (simulator.md 2.8, vllm-api.md section 8)."""

from __future__ import annotations

import json
import math
from array import array
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

from msgspec import Raw

from app.engine.vectors import BYTES, TASKS, Bag, Pace, Pack, logit, packing, sigmoid
from app.serving.api.identity import ResponseMeta
from app.serving.api.pipeline import RequestPipeline
from app.serving.api.pooling.runner import PoolingJob, PoolingRunner, check_count, told_tokens
from app.serving.faults.fault import damage
from app.serving.faults.injector import fault_of
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.response import Response, json_response
from app.serving.http.route import Handler, Route, post
from app.serving.protocol.coercion import JsonObject
from app.serving.protocol.common import Usage, encode
from app.serving.protocol.messages import Message
from app.serving.protocol.pooling import (
    ClassificationRequest,
    CohereEmbedRequest,
    EmbeddingRequest,
    EncodedRequest,
    ItemList,
    PoolingRequest,
    RerankRequest,
    ScoreInputs,
    ScoreRequest,
    ScoringRequest,
    TokenIds,
)
from app.text import TokenizerError
from config.settings import ModelSettings

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

`score` is a classifier with one class, a cross-encoder; `classify` is one with several. `pooling` is our own,
for one server with all tasks.
"""

WANTED: Mapping[str, str] = {"embed": "embedding", "classify": "classes"}
"""Kind of output for scripts, by task; single tokens (`token_embed`, `token_classify`) have none."""
MOST_NUMBERS = 2**22
"""Most numbers in one answer: about 80 MB of JSON."""
COHERE_TYPES = ("float", "binary", "ubinary", "base64")
"""Forms of a vector in the order of an answer."""
INSTRUCTION_FILES = (("config.json", "task_instructions"), ("config_sentence_transformers.json", "prompts"))
"""Files and keys with a model's instructions for input types, in vLLM's order."""

Pair = tuple[TokenIds, TokenIds]


def served_routes(settings: ModelSettings) -> tuple[str, ...]:
    """Returns the pooling routes of a model; a generating model has embeddings at most."""
    beside = (EMBEDDINGS,) if settings.embeddings_with_chat else ()
    routes = ROUTES.get(settings.task, beside)
    return tuple(path for path in routes if not (settings.mm_encoder_only and path in (EMBEDDINGS, COHERE)))


def routes(pipeline: RequestPipeline, settings: ModelSettings) -> list[Route]:
    """Returns the pooling routes, which read a request, wait for the engine, compute and write numbers."""
    runner = PoolingRunner(pipeline, settings)
    model, task, headers = runner.model, settings.task, pipeline.responder.headers

    def create_embeddings(context: RequestContext) -> Response:
        """A vector for each text or conversation."""
        request = pipeline.decode(context, EmbeddingRequest)
        job = runner.pool(context, request, "embd", "embedding")
        rows = pooled(runner, request, job, "embed")
        return vector_reply(request, job.meta, "embedding", rows, headers, runner.pace)

    def create_pooling(context: RequestContext) -> Response:
        """The output of the model's head for each text or for the conversation."""
        request = pipeline.decode(context, PoolingRequest)
        if request.dimensions is not None:
            raise bad_request("dimensions are for /v1/embeddings only", "dimensions")
        own = "classify" if task in ("score", "classify") else "embed"
        chosen, possible = request.task or own, TASKS if task == "pooling" else (own,)
        if chosen not in possible:
            raise bad_request(f"this model does not do {chosen!r}, only {', '.join(possible)}", "task")
        job = runner.pool(context, request, "pooling", WANTED.get(chosen, chosen))
        rows = pooled(runner, request, job, chosen)
        return vector_reply(request, job.meta, "data", rows, headers, runner.pace)

    def create_classification(context: RequestContext) -> Response:
        """The probability of each class, and the name of the most likely one."""
        request = pipeline.decode(context, ClassificationRequest)
        job = runner.pool(context, request, "classify", "classes")

        def item(index: int, ids: TokenIds) -> JsonObject:
            scores, names = job.classes(index) or (model.classify(ids, request.use_activation), [])
            best = max(range(len(scores)), key=scores.__getitem__)
            label = names[best] if names else f"LABEL_{best}"
            return {"index": index, "label": label, "probs": scores, "num_classes": len(scores)}

        items = (item(index, ids) for index, ids in enumerate(runner.paced(job.inputs)))
        return list_reply(job.meta, items, job.prompt_tokens, headers)

    def create_score(context: RequestContext) -> Response:
        """A score for each pair: one text against many, or each against its counterpart."""
        request = pipeline.decode(context, ScoreRequest)
        found = _compare(runner, request, request.sides, task == "score", context)
        scores = enumerate(runner.paced(found.scores))
        items = ({"index": index, "object": "score", "score": score} for index, score in scores)
        return list_reply(found.meta, items, found.tokens, headers)

    def create_rerank(context: RequestContext) -> Response:
        """The documents, best first, with their scores."""
        request = pipeline.decode(context, RerankRequest)
        found = _compare(runner, request, (request.query, request.documents), task == "score", context)
        best = sorted(range(len(found.scores)), key=found.scores.__getitem__, reverse=True)
        results = [
            {
                "index": index,
                "document": {"text": found.documents[index], "multi_modal": None},
                "relevance_score": found.scores[index],
            }
            for index in best[: request.top_n or None]
        ]
        usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
        answer = {"id": found.meta.id, "model": found.meta.model, "usage": usage, "results": results}
        return json_response(answer, 200, headers)

    instructions = task_instructions(Path(settings.model))

    def create_cohere_embeddings(context: RequestContext) -> Response:
        """A vector for each text, image or mixed input, in every form that is asked for."""
        request = pipeline.decode(context, CohereEmbedRequest)
        pipeline.models.resolve(request.model)
        return json_response(_cohere_answer(runner, request, instructions, context), 200, headers)

    handlers = {
        EMBEDDINGS: create_embeddings,
        COHERE: create_cohere_embeddings,
        "/pooling": create_pooling,
        "/classify": create_classification,
        **{path: create_rerank if path.endswith("rerank") else create_score for path in SCORES},
    }
    return [post(path, _damaged(handlers[path])) for path in served_routes(settings)]


def _damaged(handler: Callable[[RequestContext], Response]) -> Handler:
    @wraps(handler)
    def damaged(context: RequestContext) -> Response:
        return damage(handler(context), fault_of(context), context)

    return damaged


class Pooled(NamedTuple):
    """Rows of numbers for each input, computed on reading; shapes and tokens are known before."""

    inputs: Iterable[Iterable[array[float]]]
    shapes: Sequence[tuple[int, ...]]
    tokens: int

    def check_size(self) -> None:
        """Raises ApiError 400 for more numbers than one answer holds."""
        if (numbers := sum(map(math.prod, self.shapes))) > MOST_NUMBERS:
            raise bad_request(f"the answer would have {numbers} numbers, more than {MOST_NUMBERS}")


def list_reply(
    meta: ResponseMeta, items: Iterable[object], tokens: int, headers: Mapping[str, str]
) -> Response:
    data, usage = [Raw(encode(item)) for item in items], Usage(tokens, tokens, 0, None, None)
    told = ItemList(id=meta.id, created=meta.created, model=meta.model, data=data, usage=usage)
    return json_response(told, 200, headers)


def vector_reply(
    request: EncodedRequest,
    meta: ResponseMeta,
    field: str,
    pooled: Pooled,
    headers: Mapping[str, str],
    pace: Pace,
) -> Response:
    """Returns the numbers in the request's encoding; an item of a list has them under `field`.

    ApiError 400 for more numbers than one answer holds.
    """
    pooled.check_size()
    form, kind = request.encoding_format, "pooling" if field == "data" else field
    pack = packing(request.embed_dtype, request.endianness, pace)
    if form in ("float", "base64"):
        values = (
            _value(rows, len(shape) > 1, pack if form == "base64" else None)
            for rows, shape in zip(pooled.inputs, pooled.shapes, strict=True)
        )
        items = ({"index": index, "object": kind, field: value} for index, value in enumerate(values))
        return list_reply(meta, items, pooled.tokens, headers)
    if form == "bytes":
        headers = {**headers, "metadata": _metadata(request, meta, pooled)}
    body = b"".join(pack(row) for rows in pooled.inputs for row in rows)
    return Response(body, 200, headers, content_type="application/octet-stream")


def _value(rows: Iterable[array[float]], nested: bool, pack: Pack | None) -> object:
    if pack is not None:
        return b64encode(b"".join(map(pack, rows))).decode()
    lists = [row.tolist() for row in rows]
    return lists if nested else lists[0]


def _metadata(request: EncodedRequest, meta: ResponseMeta, pooled: Pooled) -> str:
    """Returns the header that describes a body of bytes: JSON in ASCII.

    The numbers of an input are from byte `start` up to `end`.
    """
    same = {"embed_dtype": request.embed_dtype, "endianness": request.endianness}
    sizes = (BYTES[request.embed_dtype] * math.prod(shape) for shape in pooled.shapes)
    places = pairwise(accumulate(sizes, initial=0))
    items = [
        {"index": index, **same, "start": start, "end": end, "shape": shape}
        for index, ((start, end), shape) in enumerate(zip(places, pooled.shapes, strict=True))
    ]
    usage = {"prompt_tokens": pooled.tokens, "total_tokens": pooled.tokens}
    told = {"id": meta.id, "created": meta.created, "model": meta.model, "data": items, "usage": usage}
    return json.dumps(told)


def pooled(runner: PoolingRunner, request: ClassificationRequest, job: PoolingJob, task: str) -> Pooled:
    """Returns the rows of `task` for each input, or the one row that a script decides.

    Texts are embedded as they came, or decoded where they came as tokens or were truncated.
    """
    model, activation = runner.model, request.use_activation
    width = request.dimensions if isinstance(request, EmbeddingRequest) else None
    texts = request.texts if request.truncate_prompt_tokens is None and task == "embed" else []
    scripted = [job.scripted(index) for index in range(len(job.inputs))]
    shapes = [
        (len(own),) if isinstance(own, array) else (width,) if width else model.shape(task, len(ids))
        for own, ids in zip(scripted, job.inputs, strict=True)
    ]

    def rows() -> Iterator[Iterable[array[float]]]:
        for index, (own, ids) in enumerate(zip(scripted, job.inputs, strict=True)):
            if own is None and task == "embed":
                own = texts[index] if texts else model.tokenizer.decode(ids)
            if isinstance(own, str):
                own = model.vector(own, activation, width)
            yield model.pool(task, ids, activation) if own is None else [own]

    return Pooled(rows(), shapes, job.prompt_tokens)


class Compared(NamedTuple):
    meta: ResponseMeta
    documents: Sequence[str]
    scores: list[float]
    tokens: int
    """Tokens of all prompts."""


def _compare(
    runner: PoolingRunner,
    request: ScoringRequest,
    sides: tuple[ScoreInputs, ScoreInputs],
    cross_encoder: bool,
    context: RequestContext,
) -> Compared:
    """Returns the scores of all pairs, after their run in the engine. ApiError 400 for texts without pairs.

    A cross-encoder reads each pair as one prompt, other models each text on its own.
    """
    name = runner.admit(request)
    queries, first = _side(runner, request, sides[0], "max_tokens_per_query")
    documents, second = _side(runner, request, sides[1], "max_tokens_per_doc")
    if len(queries) not in (1, len(documents)) or not documents:
        raise bad_request("one text goes with one or many, many with as many; there must be at least one")
    times = len(documents) // len(queries)
    if cross_encoder:
        pairs = list(zip(first * times, second, strict=True))
        pairs = [_as_one_prompt(runner, request, *pair) for pair in runner.paced(pairs)]
        prompts: Iterable[TokenIds] = (one + other for one, other in pairs)
        count, tokens = len(pairs), sum(len(one) + len(other) for one, other in pairs)
    else:
        first, second = ([runner.fitted(request, ids) for ids in side] for side in (first, second))
        pairs, prompts = list(zip(first * times, second, strict=True)), first + second
        count, tokens = len(prompts), sum(map(len, prompts))
    scores = list(_logits(runner.paced(pairs)))
    if request.use_activation is not False:
        scores = list(map(sigmoid, scores))
    meta = runner.pipeline.identity.response_meta("score", context, request.request_id, name)
    chats: Iterable[Sequence[Message]] = (
        [{"role": "user", "content": asked}, {"role": "document", "content": text}]
        for asked, text in zip(queries * times, documents, strict=True)
    )
    answers = runner.decide(chats, len(pairs), "score", request.model or name, context)
    runner.go_through(context, request, meta, count, prompts, answers)
    for index, answer in enumerate(answers):
        if answer is not None and answer.score is not None:
            scores[index] = answer.score
    return Compared(meta, documents, scores, told_tokens(answers, tokens))


def _side(
    runner: PoolingRunner, request: ScoringRequest, inputs: ScoreInputs, name: str
) -> tuple[list[str], list[TokenIds]]:
    """Returns the texts of one side, and their token ids, cut to the limit in the field `name`; 0: no limit.

    ApiError 400 for content parts, which only multimodal models read.
    """
    given, limit = inputs if isinstance(inputs, list) else [inputs], getattr(request, name)
    texts = [text for text in given if isinstance(text, str)]
    if len(texts) < len(given):
        raise bad_request("parts of content are for models that take more than text")
    check_count(len(texts), "documents")
    if not 0 <= limit < runner.most_tokens:
        raise bad_request(f"{name} must be at least 0 and below {runner.most_tokens}, got {limit}")
    bounded = not limit and request.truncate_prompt_tokens is None
    return texts, [ids[: limit or None] for ids in runner.paced(runner.encode(texts, True, bounded))]


def _logits(pairs: Iterable[Pair]) -> Iterator[float]:
    last: TokenIds = []
    query_bag = Bag(last)
    for query, document in pairs:
        if not query and not document:
            raise bad_request("a pair of texts has no tokens")
        if query is not last:  # one query with many documents is counted once
            last, query_bag = query, Bag(query)
        yield logit(query_bag, Bag(document))


def _as_one_prompt(
    runner: PoolingRunner, request: ScoringRequest, query: TokenIds, document: TokenIds
) -> Pair:
    """Truncates both texts as one text. ApiError 400 when they exceed the context."""
    keep, tokens = request.truncate_prompt_tokens, len(query) + len(document)
    if tokens <= (runner.most_tokens if keep is None or keep < 0 else keep):
        return query, document
    both = runner.fitted(request, query + document)
    split = max(0, len(query) - (tokens - len(both) if request.truncation_side == "left" else 0))
    return both[:split], both[split:]


def _cohere_answer(
    runner: PoolingRunner,
    request: CohereEmbedRequest,
    instructions: Mapping[str, str] | None,
    context: RequestContext,
) -> JsonObject:
    """Embeds texts, images or mixed inputs; `instructions` by input type: None takes every type."""
    kind, instruction = request.input_type, ""
    if kind is not None and instructions is not None:
        if kind not in instructions:
            supported = ", ".join(sorted(instructions)) or "none, this model defines no instructions"
            raise bad_request(f"Unsupported input_type {kind!r}; supported: {supported}")
        instruction = instructions[kind]
    asked = request.as_embedding(instruction, bool(instruction) and _renders_chats(runner))
    job = runner.pool(context, asked, "embd", "embedding")
    rows = pooled(runner, asked, job, "embed")
    most, longest = request.max_tokens, max(map(len, job.inputs))
    if request.truncate == "NONE" and most is not None and longest > most:
        raise bad_request(f"an input of {longest} tokens is longer than max_tokens={most}")
    rows.check_size()
    vectors, types = [row for each in rows.inputs for row in each], request.embedding_types or ["float"]
    kinds = {part.type for each in request.inputs or () for part in each.content}
    images = rows.tokens if request.images is not None or "image_url" in kinds else 0
    units = {"input_tokens": rows.tokens - images, "image_tokens": images}
    return {
        "id": job.meta.id,
        "embeddings": {type: _typed(type, vectors, runner) for type in COHERE_TYPES if type in types},
        **({} if request.texts is None else {"texts": request.texts}),
        "meta": {"api_version": {"version": "2"}, "billed_units": units},
        "response_type": "embeddings_by_type",
    }


def _typed(kind: str, vectors: Sequence[array[float]], runner: PoolingRunner) -> Sequence[object]:
    """Returns the vectors as floats, as base64, or as a bit for each number, eight to a byte."""
    if kind == "float":
        return [row.tolist() for row in vectors]
    if kind == "base64":
        pack = packing("float32", "little", runner.pace)
        return [b64encode(pack(row)).decode() for row in vectors]
    if len(vectors[0]) % 8:
        raise bad_request(f"binary embeddings need a multiple of 8 dimensions, got {len(vectors[0])}")
    least = -128 if kind == "binary" else 0
    return [[byte + least for byte in _signs(row)] for row in runner.paced(vectors)]


def _signs(vector: array[float]) -> bytes:
    """Returns a bit for each number, 1 unless it is negative, the first one highest."""
    bits = int("".join("1" if number >= 0 else "0" for number in vector), 2)
    return bits.to_bytes(len(vector) // 8, "big")


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


def _renders_chats(runner: PoolingRunner) -> bool:
    try:
        runner.pipeline.tokenizer.render_chat([{"role": "user", "content": "x"}])
    except TokenizerError:
        return False
    return True
