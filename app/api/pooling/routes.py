"""The routes of a pooling model: vectors, classes, scores (simulator.md 2.8, vllm-api.md section 8)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat

import msgspec
from msgspec import UnsetType

from app.api.frontend import Frontend
from app.api.pooling.inputs import check_count, enter, fitted, prompt_ids, text_ids
from app.api.pooling.writer import ItemForm, Pooled, list_reply, vector_reply
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.http.response import Response, json_response
from app.http.route import Handler, Route, post
from app.pooling.model import TASKS, Bag, PoolingModel, logit, sigmoid
from app.pooling.numbers import Turns
from app.protocol.decoding import Request
from app.protocol.pooling import (
    MAX_DIMENSIONS,
    ClassificationRequest,
    EmbeddingRequest,
    PoolingRequest,
    RerankRequest,
    ScoreInputs,
    ScoreRequest,
    ScoringRequest,
    TokenIds,
)
from config.settings import ModelSettings

EMBEDDINGS = "/v1/embeddings"
SCORES = ("/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank")

ROUTES: Mapping[str, tuple[str, ...]] = {
    "embed": (EMBEDDINGS, "/pooling", *SCORES),
    "score": ("/pooling", "/classify", *SCORES),
    "classify": ("/pooling", "/classify"),
    "pooling": (EMBEDDINGS, "/pooling", "/classify", *SCORES),
}
"""By task, as vLLM has them: `score` is a classifier with one class, a cross-encoder; `classify` is one with
several. A model that does everything, `pooling`, is our own: one server to try them all."""

POOLED: Mapping[str, str] = {
    "embed": "embed",
    "score": "classify",
    "classify": "classify",
    "pooling": "embed",
}
"""What POST /pooling gives when the request does not say, by task."""


BODIES: Mapping[str, type[Request]] = {
    EMBEDDINGS: EmbeddingRequest,
    "/pooling": PoolingRequest,
    "/classify": ClassificationRequest,
    **{path: RerankRequest if path.endswith("rerank") else ScoreRequest for path in SCORES},
}


def served_routes(settings: ModelSettings) -> tuple[str, ...]:
    """The pooling routes of a model; none for one that generates."""
    routes = ROUTES.get(settings.task, ())
    return tuple(path for path in routes if not (settings.mm_encoder_only and path == EMBEDDINGS))


def routes(frontend: Frontend, settings: ModelSettings) -> list[Route]:
    """The pooling routes. What they do is not queued, takes no time and is not counted (simulator.md 2.8)."""
    task = settings.task
    model = PoolingModel(settings.default_embedding_dimensions, classes=1 if task == "score" else 2)
    scores, ranks = score(frontend, task == "score"), rerank(frontend, task == "score")
    handlers: Mapping[str, Handler] = {
        EMBEDDINGS: embeddings(frontend, model),
        "/pooling": pooling(frontend, model, POOLED.get(task, ""), others=task == "pooling"),
        "/classify": classification(frontend, model),
        **{path: ranks if path.endswith("rerank") else scores for path in SCORES},
    }
    return [post(path, handlers[path], body=BODIES[path]) for path in served_routes(settings)]


EMBEDDING = ItemForm("embedding", "embedding")
POOLING = ItemForm("pooling", "data")


def embeddings(frontend: Frontend, model: PoolingModel) -> Handler:
    """The view of /v1/embeddings."""

    def create_embeddings(context: RequestContext) -> Response:
        """A vector for each text or conversation."""
        asked = frontend.decode(context, EmbeddingRequest)
        name = enter(frontend, asked)
        dimensions = _dimensions(asked, model)
        inputs = prompt_ids(frontend, asked)
        pooled = Pooled(
            ([model.embed(ids, asked.use_activation, dimensions)] for ids in inputs),
            [(dimensions,)] * len(inputs),
            sum(map(len, inputs)),
        )
        head = frontend.identity.head("embd", context, asked.request_id, name)
        return vector_reply(asked, head, EMBEDDING, pooled, frontend.responder.headers)

    return create_embeddings


def pooling(frontend: Frontend, model: PoolingModel, own: str, others: bool) -> Handler:
    """The view of /pooling for a model whose task is `own`; with `others` a request may name any one."""
    possible = TASKS if others else (own,)

    def create_pooling(context: RequestContext) -> Response:
        """What the model's head gives for each text or for the conversation."""
        asked = frontend.decode(context, PoolingRequest)
        task = _task(asked, own, possible)
        name = enter(frontend, asked)
        inputs = prompt_ids(frontend, asked)
        pooled = Pooled(
            (model.pool(task, ids, asked.use_activation) for ids in inputs),
            [model.shape(task, len(ids)) for ids in inputs],
            sum(map(len, inputs)),
        )
        head = frontend.identity.head("pooling", context, asked.request_id, name)
        return vector_reply(asked, head, POOLING, pooled, frontend.responder.headers)

    return create_pooling


def _dimensions(asked: EmbeddingRequest, model: PoolingModel) -> int:
    wanted = model.dimensions if asked.dimensions is None else asked.dimensions
    if not 1 <= wanted <= MAX_DIMENSIONS:
        raise bad_request(f"dimensions must be from 1 to {MAX_DIMENSIONS}, got {wanted}")
    return wanted


def _task(asked: PoolingRequest, own: str, possible: tuple[str, ...]) -> str:
    if asked.dimensions is not None:
        raise bad_request("dimensions are for /v1/embeddings only", "dimensions")
    task = asked.task or own
    if task not in possible:
        raise bad_request(f"this model does not do {task!r}, only {', '.join(possible)}", "task")
    return task


def classification(frontend: Frontend, model: PoolingModel) -> Handler:
    """The view of /classify."""

    def create_classification(context: RequestContext) -> Response:
        """The probability of each class, and the name of the most likely one."""
        asked = frontend.decode(context, ClassificationRequest)
        name = enter(frontend, asked)
        inputs = prompt_ids(frontend, asked)
        head = frontend.identity.head("classify", context, asked.request_id, name)
        items = _class_items(model, inputs, asked.use_activation)
        return list_reply(head, items, sum(map(len, inputs)), frontend.responder.headers)

    return create_classification


def _class_items(model: PoolingModel, inputs: Sequence[TokenIds], activation: bool | None) -> Iterator[bytes]:
    for index, ids in enumerate(Turns().each(inputs, len)):
        scores = model.classify(ids, activation)
        item = {
            "index": index,
            "label": model.label(scores),
            "probs": scores,
            "num_classes": len(scores),
        }
        yield b"," * bool(index) + msgspec.json.encode(item)


Pair = tuple[TokenIds, TokenIds]


def score(frontend: Frontend, cross_encoder: bool) -> Handler:
    """The view of /score. A cross-encoder reads each pair as one prompt, others each text on its own."""

    def create_score(context: RequestContext) -> Response:
        """A score for each pair: one text against many, or each against its counterpart."""
        asked = frontend.decode(context, ScoreRequest)
        name = enter(frontend, asked)
        scores, tokens = _scores(
            frontend, asked, _texts(asked.queries), _texts(asked.documents), cross_encoder
        )
        head = frontend.identity.head("score", context, asked.request_id, name)
        items = (
            b"," * bool(index) + msgspec.json.encode({"index": index, "object": "score", "score": value})
            for index, value in enumerate(scores)
        )
        return list_reply(head, items, tokens, frontend.responder.headers)

    return create_score


def rerank(frontend: Frontend, cross_encoder: bool) -> Handler:
    """The view of /rerank; `cross_encoder` as for `score`."""

    def create_rerank(context: RequestContext) -> Response:
        """The documents, best first, with their scores."""
        asked = frontend.decode(context, RerankRequest)
        name = enter(frontend, asked)
        documents = _texts(asked.documents)
        scores, tokens = _scores(frontend, asked, _texts(asked.query), documents, cross_encoder)
        best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
        head = frontend.identity.head("score", context, asked.request_id, name)
        results = [
            {
                "index": index,
                "document": {"text": documents[index], "multi_modal": None},
                "relevance_score": scores[index],
            }
            for index in best[: asked.top_n or None]
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        answer = {"id": head.id, "model": name, "usage": usage, "results": results}
        return json_response(answer, 200, frontend.responder.headers)

    return create_rerank


def _scores(
    frontend: Frontend, asked: ScoringRequest, queries: list[str], documents: list[str], cross_encoder: bool
) -> tuple[list[float], int]:
    """A score for each pair, and the tokens of all prompts. ApiError 400 when the texts make no pairs."""
    if len(queries) not in (1, len(documents)) or not documents:
        raise bad_request("one text goes with one or many, many with as many; there must be at least one")
    check_count(len(documents), "documents")
    first = _ids(frontend, asked, queries, _limit(frontend, asked, "max_tokens_per_query"))
    second = _ids(frontend, asked, documents, _limit(frontend, asked, "max_tokens_per_doc"))
    if cross_encoder:
        pairs = [_as_one_prompt(frontend, asked, pair) for pair in _pairs(first, second)]
        tokens = sum(map(_tokens, pairs))
    else:
        first, second = ([fitted(frontend, asked, ids) for ids in side] for side in (first, second))
        pairs = list(_pairs(first, second))
        tokens = sum(map(len, first)) + sum(map(len, second))
    logits = list(_logits(pairs))
    return logits if asked.use_activation is False else list(map(sigmoid, logits)), tokens


def _pairs(queries: list[TokenIds], documents: list[TokenIds]) -> Iterator[Pair]:
    """Each query with its document, or the only one with every document; in turns."""
    first = repeat(queries[0], len(documents)) if len(queries) == 1 else queries
    return Turns().each(zip(first, documents, strict=True), _tokens)


def _logits(pairs: Iterable[Pair]) -> Iterator[float]:
    last: TokenIds = []
    query_bag = Bag(last)
    for query, document in Turns().each(pairs, _tokens):
        if not query and not document:
            raise bad_request("a pair of texts has no tokens")
        if query is not last:  # one query with many documents is counted once
            last, query_bag = query, Bag(query)
        yield logit(query_bag, Bag(document))


def _as_one_prompt(frontend: Frontend, asked: ScoringRequest, pair: Pair) -> Pair:
    """What is left of both texts when they are truncated as one. ApiError 400 when it exceeds the context."""
    query, document = pair
    keep = asked.truncate_prompt_tokens
    if _tokens(pair) <= (frontend.limits.max_model_len if keep is None or keep < 0 else keep):
        return pair
    both = fitted(frontend, asked, query + document)
    split = len(query) - (_tokens(pair) - len(both) if asked.truncation_side == "left" else 0)
    return both[: max(0, split)], both[max(0, split) :]


def _ids(frontend: Frontend, asked: ScoringRequest, texts: list[str], limit: int | None) -> list[TokenIds]:
    bounded = limit is None and asked.truncate_prompt_tokens is None
    return [ids[:limit] for ids in Turns().each(text_ids(frontend, texts, True, bounded), len)]


def _limit(frontend: Frontend, asked: ScoringRequest, name: str) -> int | None:
    limit: int = getattr(asked, name)
    if not 0 <= limit < frontend.limits.max_model_len:
        raise bad_request(f"{name} must be at least 0 and below {frontend.limits.max_model_len}, got {limit}")
    return limit or None


def _tokens(pair: Pair) -> int:
    return len(pair[0]) + len(pair[1])


def _texts(inputs: ScoreInputs | UnsetType) -> list[str]:
    """The texts of one side. ApiError 400 for parts: only models that take more than text read them."""
    texts = [text for text in (inputs if isinstance(inputs, list) else [inputs]) if isinstance(text, str)]
    if isinstance(inputs, list) and len(texts) < len(inputs) or isinstance(inputs, dict):
        raise bad_request("parts of content are for models that take more than text")
    return texts
