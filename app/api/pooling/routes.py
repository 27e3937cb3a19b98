"""The routes of a pooling model: vectors, classes, scores (simulator.md 2.8, vllm-api.md section 8)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import msgspec

from app.api.frontend import Frontend
from app.api.pooling.cohere import Embedded, cohere_embeddings
from app.api.pooling.places import (
    Scripted,
    Vector,
    enter,
    of_inputs,
    prompt_ids,
    struck,
    take_places,
    texts_of,
)
from app.api.pooling.scores import rerank, score
from app.api.pooling.writer import ItemForm, Pooled, list_reply, vector_reply
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
from app.tokenization.files import is_matryoshka, model_config
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
    """The pooling routes of a model; one that generates has embeddings at most."""
    beside = (EMBEDDINGS,) if settings.embeddings_with_chat else ()
    routes = ROUTES.get(settings.task, beside)
    return tuple(path for path in routes if not (settings.mm_encoder_only and path in (EMBEDDINGS, COHERE)))


def routes(frontend: Frontend, settings: ModelSettings) -> list[Route]:
    """The pooling routes."""
    task = settings.task
    classes = 1 if task == "score" else 2
    model = PoolingModel(
        settings.default_embedding_dimensions,
        classes,
        frontend.tokenizer,
        is_matryoshka(model_config(settings.model)),
    )
    scores, ranks = score(frontend, task == "score"), rerank(frontend, task == "score")
    handlers: Mapping[str, Handler] = {
        EMBEDDINGS: embeddings(frontend, model),
        COHERE: cohere_embeddings(frontend, partial(embed, frontend, model), settings.model),
        "/pooling": pooling(frontend, model, POOLED.get(task, ""), others=task == "pooling"),
        "/classify": classification(frontend, model),
        **{path: ranks if path.endswith("rerank") else scores for path in SCORES},
    }
    return [post(path, handlers[path]) for path in served_routes(settings)]


WANTED: Mapping[str, str] = {"embed": "embedding", "classify": "classes"}
"""What a task wants of scripts; of each token (`token_embed` and the like) they have nothing to say."""
EMBEDDING = ItemForm("embedding", "embedding")
POOLING = ItemForm("pooling", "data")


def embeddings(frontend: Frontend, model: PoolingModel) -> Handler:
    """The view of /v1/embeddings."""

    def create_embeddings(context: RequestContext) -> Response:
        """A vector for each text or conversation."""
        asked = frontend.decode(context, EmbeddingRequest)
        made = embed(frontend, model, asked, context)
        if isinstance(made, Response):
            return made
        answer = vector_reply(asked, made.meta, EMBEDDING, made.pooled, frontend.responder.headers)
        return struck(answer, context)

    return create_embeddings


def embed(
    frontend: Frontend, model: PoolingModel, asked: EmbeddingRequest, context: RequestContext
) -> Embedded | Response:
    """The vectors of a request; the answer if the client has gone before there were any."""
    name = enter(frontend, asked)
    dimensions = _dimensions(asked, model)
    inputs = prompt_ids(frontend, asked)
    head = frontend.identity.head("embd", context, asked.request_id, name)
    scripted = of_inputs(frontend, asked, inputs, "embedding", name, context)
    gone = take_places(frontend, context, asked, head, len(inputs), inputs.__getitem__, scripted)
    if gone is not None:
        return gone
    turns = Turns()

    def vector(number: int, text: str) -> array[float]:
        """The one of an input."""
        said = scripted.vector(number)
        if isinstance(said, array):
            return said
        return model.embed(text if said is None else said, asked.use_activation, turns, dimensions)

    pooled = Pooled(
        ([vector(number, text)] for number, text in enumerate(texts_of(frontend, asked, inputs))),
        [_length(scripted.vector(number), dimensions) for number in range(len(inputs))],
        scripted.tokens(sum(map(len, inputs))),
    )
    return Embedded(head, pooled, max(map(len, inputs)))


def _length(said: Vector, usual: int) -> tuple[int]:
    return (len(said) if isinstance(said, array) else usual,)


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
        scripted = of_inputs(frontend, asked, inputs, WANTED.get(task, task), name, context)
        gone = take_places(frontend, context, asked, head, len(inputs), inputs.__getitem__, scripted)
        if gone is not None:
            return gone
        turns = Turns()
        said = [_said(model, scripted, number, asked.use_activation, turns) for number in range(len(inputs))]
        pooled = Pooled(
            (
                model.pool(task, ids, asked.use_activation, turns) if row is None else [row]
                for ids, row in zip(inputs, said, strict=True)
            ),
            [
                model.shape(task, len(ids)) if row is None else (len(row),)
                for ids, row in zip(inputs, said, strict=True)
            ],
            scripted.tokens(sum(map(len, inputs))),
        )
        return struck(vector_reply(asked, head, POOLING, pooled, frontend.responder.headers), context)

    return create_pooling


def _said(
    model: PoolingModel, scripted: Scripted, number: int, activation: bool | None, turns: Turns
) -> array[float] | None:
    """The numbers that a script says of an input; None where it says none."""
    if (classes := scripted.classes(number)) is not None:
        return array("f", classes[0])
    vector = scripted.vector(number)
    return model.embed(vector, activation, turns) if isinstance(vector, str) else vector


def _dimensions(asked: EmbeddingRequest, model: PoolingModel) -> int:
    wanted = model.dimensions if asked.dimensions is None else asked.dimensions
    if asked.dimensions is not None and not model.matryoshka:
        raise bad_request(
            "The served model does not support Matryoshka embeddings: dimensions must be unset."
        )
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
        scripted = of_inputs(frontend, asked, inputs, "classes", name, context)
        gone = take_places(frontend, context, asked, head, len(inputs), inputs.__getitem__, scripted)
        if gone is not None:
            return gone
        items = _class_items(model, inputs, asked.use_activation, scripted)
        tokens = scripted.tokens(sum(map(len, inputs)))
        return struck(list_reply(head, items, tokens, frontend.responder.headers), context)

    return create_classification


def _class_items(
    model: PoolingModel, inputs: Sequence[TokenIds], activation: bool | None, scripted: Scripted
) -> Iterator[bytes]:
    for index, ids in enumerate(Turns().each(inputs, len)):
        scores, names = scripted.classes(index) or (model.classify(ids, activation), [])
        item = {
            "index": index,
            "label": model.label(scores, names),
            "probs": scores,
            "num_classes": len(scores),
        }
        yield b"," * bool(index) + msgspec.json.encode(item)
