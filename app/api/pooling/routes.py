"""The routes of a pooling model: vectors, classes, scores (simulator.md 2.8, vllm-api.md section 8)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from app.api.frontend import Frontend
from app.api.pooling.inputs import enter, prompt_ids, texts_of
from app.api.pooling.places import take_places
from app.api.pooling.scores import rerank, score
from app.api.pooling.writer import ItemForm, Pooled, list_reply, vector_reply
from app.faults.damage import damage
from app.faults.injector import fault_of
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.http.response import Response
from app.http.route import Handler, Route, post
from app.pooling.model import TASKS, PoolingModel
from app.pooling.numbers import Turns
from app.protocol.pooling import (
    MAX_DIMENSIONS,
    ClassificationRequest,
    EmbeddingRequest,
    PoolingRequest,
    TokenIds,
)
from config.settings import ModelSettings

if TYPE_CHECKING:
    from app.api.script import ScriptedVectors

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


def served_routes(settings: ModelSettings) -> tuple[str, ...]:
    """The pooling routes of a model; none for one that generates."""
    routes = ROUTES.get(settings.task, ())
    return tuple(path for path in routes if not (settings.mm_encoder_only and path == EMBEDDINGS))


def routes(frontend: Frontend, settings: ModelSettings) -> list[Route]:
    """The pooling routes."""
    task = settings.task
    classes = 1 if task == "score" else 2
    model = PoolingModel(settings.default_embedding_dimensions, classes, frontend.tokenizer)
    scores, ranks = score(frontend, task == "score"), rerank(frontend, task == "score")
    handlers: Mapping[str, Handler] = {
        EMBEDDINGS: embeddings(frontend, model),
        "/pooling": pooling(frontend, model, POOLED.get(task, ""), others=task == "pooling"),
        "/classify": classification(frontend, model),
        **{path: ranks if path.endswith("rerank") else scores for path in SCORES},
    }
    return [post(path, handlers[path]) for path in served_routes(settings)]


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
        head = frontend.identity.head("embd", context, asked.request_id, name)
        scripted: ScriptedVectors = ()
        if frontend.scripts is not None:
            scripted = frontend.scripts.vectors(asked, inputs, name, context)
        if (left := take_places(frontend, context, asked, head, len(inputs), inputs.__getitem__)) is not None:
            return left
        turns = Turns()

        def vector(number: int, text: str) -> array[float]:
            """The one of an input."""
            said = scripted[number] if scripted else None
            if isinstance(said, array):
                return said
            return model.embed(text if said is None else said, asked.use_activation, turns, dimensions)

        pooled = Pooled(
            ([vector(number, text)] for number, text in enumerate(texts_of(frontend, asked, inputs))),
            [(len(said) if isinstance(said, array) else dimensions,) for said in scripted]
            or [(dimensions,)] * len(inputs),
            sum(map(len, inputs)),
        )
        answer = vector_reply(asked, head, EMBEDDING, pooled, frontend.responder.headers)
        return damage(answer, fault_of(context), context)

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
        head = frontend.identity.head("pooling", context, asked.request_id, name)
        if (left := take_places(frontend, context, asked, head, len(inputs), inputs.__getitem__)) is not None:
            return left
        turns = Turns()
        pooled = Pooled(
            (model.pool(task, ids, asked.use_activation, turns) for ids in inputs),
            [model.shape(task, len(ids)) for ids in inputs],
            sum(map(len, inputs)),
        )
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
        if (left := take_places(frontend, context, asked, head, len(inputs), inputs.__getitem__)) is not None:
            return left
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
