"""POST /v1/embeddings and POST /pooling: one vector for each input, or one for each of its tokens."""

from __future__ import annotations

from collections.abc import Callable

from flask import request

from app.api.door import Door
from app.api.pooling.inputs import enter, prompt_ids
from app.api.pooling.writer import ItemForm, Pooled, vector_reply
from app.http.errors import bad_request
from app.http.response import Reply
from app.pooling.model import TASKS, PoolingModel
from app.protocol.pooling import MAX_DIMENSIONS, EmbeddingRequest, PoolingRequest

View = Callable[[], Reply]

EMBEDDING = ItemForm("embedding", "embedding")
POOLING = ItemForm("pooling", "data")


def embeddings(door: Door, model: PoolingModel) -> View:
    """The view of /v1/embeddings."""

    def create_embeddings() -> Reply:
        """A vector for each text or conversation."""
        asked = door.decode(request.environ, EmbeddingRequest)
        name = enter(door, asked)
        dimensions = _dimensions(asked, model)
        inputs = prompt_ids(door, asked)
        pooled = Pooled(
            ([model.embed(ids, asked.use_activation, dimensions)] for ids in inputs),
            [(dimensions,)] * len(inputs),
            sum(map(len, inputs)),
        )
        head = door.identity.head("embd", request.environ, asked.request_id, name)
        return vector_reply(asked, head, EMBEDDING, pooled, door.delivery.headers)

    return create_embeddings


def pooling(door: Door, model: PoolingModel, own: str, others: bool) -> View:
    """The view of /pooling for a model whose task is `own`; with `others` a request may name any one."""
    possible = TASKS if others else (own,)

    def create_pooling() -> Reply:
        """What the model's head gives for each text or for the conversation."""
        asked = door.decode(request.environ, PoolingRequest)
        task = _task(asked, own, possible)
        name = enter(door, asked)
        inputs = prompt_ids(door, asked)
        pooled = Pooled(
            (model.pool(task, ids, asked.use_activation) for ids in inputs),
            [model.shape(task, len(ids)) for ids in inputs],
            sum(map(len, inputs)),
        )
        head = door.identity.head("pooling", request.environ, asked.request_id, name)
        return vector_reply(asked, head, POOLING, pooled, door.delivery.headers)

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
