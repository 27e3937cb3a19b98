"""POST /v1/embeddings and POST /pooling: one vector for each input, or one for each of its tokens."""

from __future__ import annotations

from app.api.frontend import Frontend
from app.api.pooling.inputs import enter, prompt_ids
from app.api.pooling.writer import ItemForm, Pooled, vector_reply
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.http.response import Response
from app.http.route import Handler
from app.pooling.model import TASKS, PoolingModel
from app.protocol.pooling import MAX_DIMENSIONS, EmbeddingRequest, PoolingRequest

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
