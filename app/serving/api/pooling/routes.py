"""Routes of a pooling model: vectors, classes, scores (simulator.md 2.8, vllm-api.md section 8)."""

from __future__ import annotations

import json
from array import array
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import NamedTuple, TypeVar

from msgspec import UNSET, Raw, UnsetType

from app.engine.vectors.model import TASKS, Bag, PoolingModel, logit, sigmoid
from app.serving.api.identity import ResponseMeta
from app.serving.api.pipeline import RequestPipeline
from app.serving.api.pooling.runner import PoolingJob, PoolingRunner, Prompt, check_count, not_empty
from app.serving.api.pooling.writer import ItemForm, Pooled, list_reply, packing, vector_reply
from app.serving.faults.damage import damage
from app.serving.faults.injector import fault_of
from app.serving.http.context import RequestContext
from app.serving.http.errors import bad_request
from app.serving.http.response import Response, json_response
from app.serving.http.route import Handler, Route, post
from app.serving.protocol.common import encode
from app.serving.protocol.pooling import (
    MAX_DIMENSIONS,
    ApiVersion,
    BilledUnits,
    ClassificationRequest,
    CohereEmbedRequest,
    CohereEmbedResponse,
    CohereMeta,
    EmbeddingRequest,
    EmbeddingsByType,
    PoolingRequest,
    RerankRequest,
    ScoreInputs,
    ScoreRequest,
    ScoringRequest,
    TokenIds,
)
from app.text import TokenizerError
from app.text.files import is_matryoshka, model_config
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

POOLED: Mapping[str, str] = {
    "embed": "embed",
    "score": "classify",
    "classify": "classify",
    "pooling": "embed",
}
"""Default task of POST /pooling, by the server's task."""
WANTED: Mapping[str, str] = {"embed": "embedding", "classify": "classes"}
"""Kind of output for scripts, by task; single tokens (`token_embed`, `token_classify`) have none."""
INSTRUCTION_FILES = (("config.json", "task_instructions"), ("config_sentence_transformers.json", "prompts"))
"""Files and keys with a model's instructions for input types, in vLLM's order."""
EMBEDDING = ItemForm("embedding", "embedding")
POOLING = ItemForm("pooling", "data")

Pair = tuple[TokenIds, TokenIds]
T = TypeVar("T")


def served_routes(settings: ModelSettings) -> tuple[str, ...]:
    """Returns the pooling routes of a model; a generating model has embeddings at most."""
    beside = (EMBEDDINGS,) if settings.embeddings_with_chat else ()
    routes = ROUTES.get(settings.task, beside)
    return tuple(path for path in routes if not (settings.mm_encoder_only and path in (EMBEDDINGS, COHERE)))


def routes(pipeline: RequestPipeline, settings: ModelSettings) -> list[Route]:
    """Returns the pooling routes, which read a request, wait for the engine, compute and write numbers."""
    runner = PoolingRunner(pipeline)
    task, head, headers = settings.task, pipeline.identity.head, pipeline.responder.headers
    model = PoolingModel(
        settings.default_embedding_dimensions,
        1 if task == "score" else 2,
        pipeline.tokenizer,
        runner.pace,
        is_matryoshka(model_config(settings.model)),
    )

    def create_embeddings(context: RequestContext) -> Response:
        """A vector for each text or conversation."""
        request = pipeline.decode(context, EmbeddingRequest)
        job, pooled = embedded(runner, model, request, context)
        answer = vector_reply(request, job.meta, EMBEDDING, pooled, headers, runner.pace)
        return damage(answer, fault_of(context), context)

    def create_pooling(context: RequestContext) -> Response:
        """The output of the model's head for each text or for the conversation."""
        request = pipeline.decode(context, PoolingRequest)
        own = POOLED.get(task, "")
        chosen = _task(request, own, TASKS if task == "pooling" else (own,))
        name = runner.admit(request)
        inputs = runner.inputs(request)
        meta = head("pooling", context, request.request_id, name)
        job = runner.run(context, request, inputs, meta, WANTED.get(chosen, chosen))
        pooled = _pooled(job, model, chosen, request.use_activation)
        answer = vector_reply(request, meta, POOLING, pooled, headers, runner.pace)
        return damage(answer, fault_of(context), context)

    def create_classification(context: RequestContext) -> Response:
        """The probability of each class, and the name of the most likely one."""
        request = pipeline.decode(context, ClassificationRequest)
        name = runner.admit(request)
        inputs = runner.inputs(request)
        meta = head("classify", context, request.request_id, name)
        job = runner.run(context, request, inputs, meta, "classes")
        items = _class_items(job, model, request.use_activation, runner)
        return damage(list_reply(meta, items, job.prompt_tokens, headers), fault_of(context), context)

    def create_score(context: RequestContext) -> Response:
        """A score for each pair: one text against many, or each against its counterpart."""
        request = pipeline.decode(context, ScoreRequest)
        found = _compare(runner, request, request.queries, request.documents, task == "score", context)
        scores = enumerate(runner.paced(found.scores))
        items = ({"index": index, "object": "score", "score": score} for index, score in scores)
        return damage(list_reply(found.meta, items, found.tokens, headers), fault_of(context), context)

    def create_rerank(context: RequestContext) -> Response:
        """The documents, best first, with their scores."""
        request = pipeline.decode(context, RerankRequest)
        found = _compare(runner, request, request.query, request.documents, task == "score", context)
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
        return damage(json_response(answer, 200, headers), fault_of(context), context)

    handlers = {
        EMBEDDINGS: create_embeddings,
        COHERE: _cohere_embeddings(runner, model, Path(settings.model)),
        "/pooling": create_pooling,
        "/classify": create_classification,
        **{path: create_rerank if path.endswith("rerank") else create_score for path in SCORES},
    }
    return [post(path, handlers[path]) for path in served_routes(settings)]


def embedded(
    runner: PoolingRunner, model: PoolingModel, request: EmbeddingRequest, context: RequestContext
) -> tuple[PoolingJob, Pooled]:
    """Returns the vectors of a request, computed on reading."""
    name = runner.admit(request)
    dimensions = _dimensions(request, model)
    inputs = runner.inputs(request)
    meta = runner.pipeline.identity.head("embd", context, request.request_id, name)
    job = runner.run(context, request, inputs, meta, "embedding")
    activation, said = request.use_activation, [job.scripted.vector(at) for at in range(len(inputs))]
    pooled = Pooled(
        (
            [model.vector(text if of is None else of, activation, dimensions)]
            for text, of in zip(runner.texts(request, inputs), said, strict=True)
        ),
        [(len(of) if isinstance(of, array) else dimensions,) for of in said],
        job.prompt_tokens,
    )
    return job, pooled


def _dimensions(request: EmbeddingRequest, model: PoolingModel) -> int:
    wanted = model.dimensions if request.dimensions is None else request.dimensions
    if request.dimensions is not None and not model.matryoshka:
        raise bad_request(
            "The served model does not support Matryoshka embeddings: dimensions must be unset."
        )
    if not 1 <= wanted <= MAX_DIMENSIONS:
        raise bad_request(f"dimensions must be from 1 to {MAX_DIMENSIONS}, got {wanted}")
    return wanted


def _task(request: PoolingRequest, own: str, possible: tuple[str, ...]) -> str:
    if request.dimensions is not None:
        raise bad_request("dimensions are for /v1/embeddings only", "dimensions")
    task = request.task or own
    if task not in possible:
        raise bad_request(f"this model does not do {task!r}, only {', '.join(possible)}", "task")
    return task


def _pooled(job: PoolingJob, model: PoolingModel, task: str, activation: bool | None) -> Pooled:
    """Returns the rows of `task` for each input, or the one row that a script decides."""
    rows: list[array[float] | None] = []
    for number in range(len(job.inputs)):
        classes, vector = job.scripted.classes(number), job.scripted.vector(number)
        if classes is not None:
            rows.append(array("f", classes[0]))
        else:
            rows.append(None if vector is None else model.vector(vector, activation))
    each = list(zip(job.inputs, rows, strict=True))
    return Pooled(
        (model.pool(task, ids, activation) if row is None else [row] for ids, row in each),
        [model.shape(task, len(ids)) if row is None else (len(row),) for ids, row in each],
        job.prompt_tokens,
    )


def _class_items(
    job: PoolingJob, model: PoolingModel, activation: bool | None, runner: PoolingRunner
) -> Iterator[object]:
    for index, ids in enumerate(runner.paced(job.inputs)):
        scores, names = job.scripted.classes(index) or (model.classify(ids, activation), [])
        label = model.label(scores, names)
        yield {"index": index, "label": label, "probs": scores, "num_classes": len(scores)}


class Compared(NamedTuple):
    """A score for each pair of texts, and the tokens of all prompts."""

    meta: ResponseMeta
    documents: Sequence[str]
    scores: list[float]
    tokens: int


def _compare(
    runner: PoolingRunner,
    request: ScoringRequest,
    query: ScoreInputs | UnsetType,
    document: ScoreInputs | UnsetType,
    cross_encoder: bool,
    context: RequestContext,
) -> Compared:
    """Returns the scores of all pairs, after their run in the engine. ApiError 400 for texts without pairs.

    A cross-encoder reads each pair as one prompt, other models each text on its own.
    """
    name = runner.admit(request)
    queries, documents = _texts(query), _texts(document)
    if len(queries) not in (1, len(documents)) or not documents:
        raise bad_request("one text goes with one or many, many with as many; there must be at least one")
    check_count(len(documents), "documents")
    first = _ids(runner, request, queries, _limit(runner, request, "max_tokens_per_query"))
    second = _ids(runner, request, documents, _limit(runner, request, "max_tokens_per_doc"))
    prompt: Prompt
    if cross_encoder:
        pairs = [_as_one_prompt(runner, request, pair) for pair in runner.paced(_pairs(first, second))]
        count, tokens = len(pairs), sum(map(_tokens, pairs))
        prompt = lambda index: pairs[index][0] + pairs[index][1]  # noqa: E731
    else:
        first, second = ([not_empty(runner.fitted(request, ids)) for ids in side] for side in (first, second))
        pairs, texts = list(_pairs(first, second)), first + second
        count, tokens, prompt = len(texts), sum(map(len, texts)), texts.__getitem__
    logits = list(_logits(runner.paced(pairs)))
    scores = logits if request.use_activation is False else list(map(sigmoid, logits))
    meta = runner.pipeline.identity.head("score", context, request.request_id, name)
    scripted = runner.ask_of_pairs(_pairs(queries, documents), request.model or name, context)
    runner.go_through(context, request, meta, count, prompt, scripted)
    return Compared(meta, documents, scripted.scored(scores), scripted.prompt_tokens(tokens))


def _pairs(queries: Sequence[T], documents: Sequence[T]) -> Iterator[tuple[T, T]]:
    """Yields each query with its document, or the only query with every document."""
    first = repeat(queries[0], len(documents)) if len(queries) == 1 else queries
    return zip(first, documents, strict=True)


def _logits(pairs: Iterable[Pair]) -> Iterator[float]:
    last: TokenIds = []
    query_bag = Bag(last)
    for query, document in pairs:
        if not query and not document:
            raise bad_request("a pair of texts has no tokens")
        if query is not last:  # one query with many documents is counted once
            last, query_bag = query, Bag(query)
        yield logit(query_bag, Bag(document))


def _as_one_prompt(runner: PoolingRunner, request: ScoringRequest, pair: Pair) -> Pair:
    """Truncates both texts as one text. ApiError 400 when they exceed the context."""
    query, document = pair
    keep = request.truncate_prompt_tokens
    if _tokens(pair) <= (runner.pipeline.limits.max_model_len if keep is None or keep < 0 else keep):
        return pair
    both = runner.fitted(request, query + document)
    split = len(query) - (_tokens(pair) - len(both) if request.truncation_side == "left" else 0)
    return both[: max(0, split)], both[max(0, split) :]


def _ids(
    runner: PoolingRunner, request: ScoringRequest, texts: list[str], limit: int | None
) -> list[TokenIds]:
    bounded = limit is None and request.truncate_prompt_tokens is None
    return [ids[:limit] for ids in runner.paced(runner.encode(texts, True, bounded))]


def _limit(runner: PoolingRunner, request: ScoringRequest, name: str) -> int | None:
    limit: int = getattr(request, name)
    most = runner.pipeline.limits.max_model_len
    if not 0 <= limit < most:
        raise bad_request(f"{name} must be at least 0 and below {most}, got {limit}")
    return limit or None


def _tokens(pair: Pair) -> int:
    return len(pair[0]) + len(pair[1])


def _texts(inputs: ScoreInputs | UnsetType) -> list[str]:
    """Returns the texts of one side. ApiError 400 for content parts, which only multimodal models read."""
    texts = [text for text in (inputs if isinstance(inputs, list) else [inputs]) if isinstance(text, str)]
    if isinstance(inputs, list) and len(texts) < len(inputs) or isinstance(inputs, dict):
        raise bad_request("parts of content are for models that take more than text")
    return texts


def _cohere_embeddings(runner: PoolingRunner, model: PoolingModel, folder: Path) -> Handler:
    pipeline, instructions = runner.pipeline, task_instructions(folder)

    def create_cohere_embeddings(context: RequestContext) -> Response:
        """A vector for each text, image or mixed input, in every form that is asked for."""
        request = pipeline.decode(context, CohereEmbedRequest)
        pipeline.models.resolve(request.model)
        instruction = _instruction(instructions, request.input_type)
        renders = bool(instruction) and _renders_chats(runner)
        job, pooled = embedded(runner, model, request.as_embedding(instruction, renders), context)
        most, longest = request.max_tokens, max(map(len, job.inputs))
        if request.truncate == "NONE" and most is not None and longest > most:
            raise bad_request(f"an input of {longest} tokens is longer than max_tokens={most}")
        pooled.check_size()
        vectors = [row for rows in pooled.inputs for row in rows]
        images = pooled.tokens if request.has_images else 0
        answer = CohereEmbedResponse(
            id=job.meta.id,
            embeddings=_by_type(vectors, request.embedding_types or ["float"], runner),
            texts=UNSET if request.texts is None else request.texts,
            meta=CohereMeta(ApiVersion(), BilledUnits(pooled.tokens - images, images)),
        )
        return damage(json_response(answer, 200, pipeline.responder.headers), fault_of(context), context)

    return create_cohere_embeddings


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


def _instruction(known: Mapping[str, str] | None, input_type: str | None) -> str:
    """Returns the text in front of an input. A model without local files takes every input type."""
    if input_type is None or known is None:
        return ""
    if input_type not in known:
        supported = ", ".join(sorted(known)) or "none, this model defines no instructions"
        raise bad_request(f"Unsupported input_type {input_type!r}; supported: {supported}")
    return known[input_type]


def _renders_chats(runner: PoolingRunner) -> bool:
    try:
        runner.pipeline.tokenizer.render_chat([{"role": "user", "content": "x"}])
    except TokenizerError:
        return False
    return True


def _by_type(
    vectors: Sequence[array[float]], kinds: Sequence[str], runner: PoolingRunner
) -> EmbeddingsByType:
    made, pack = EmbeddingsByType(), packing("float32", "little", runner.pace)
    if "float" in kinds:
        made.float_ = Raw(b"[" + b",".join(encode(row.tolist()) for row in runner.paced(vectors)) + b"]")
    if "base64" in kinds:
        made.base64 = [b64encode(pack(row)).decode() for row in runner.paced(vectors)]
    if "binary" in kinds or "ubinary" in kinds:
        packed = [_signs(row) for row in runner.paced(vectors)]
        made.ubinary = packed if "ubinary" in kinds else UNSET
        made.binary = [[byte - 128 for byte in row] for row in packed] if "binary" in kinds else UNSET
    return made


def _signs(vector: array[float]) -> list[int]:
    """Returns a bit for each number, 1 unless it is negative, eight to a byte, the first one highest."""
    if len(vector) % 8:
        raise bad_request(f"binary embeddings need a multiple of 8 dimensions, got {len(vector)}")
    bits = int("".join("1" if number >= 0 else "0" for number in vector), 2)
    return list(bits.to_bytes(len(vector) // 8, "big"))
