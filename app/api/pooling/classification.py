"""POST /classify: how likely each class is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from app.api.frontend import Frontend
from app.api.pooling.inputs import enter, prompt_ids
from app.api.pooling.writer import list_reply
from app.http.context import RequestContext
from app.http.response import Response
from app.http.route import Handler
from app.pooling.model import PoolingModel
from app.pooling.turns import Turns
from app.protocol.pooling import ClassificationRequest, TokenIds


def classification(frontend: Frontend, model: PoolingModel) -> Handler:
    """The view of /classify."""

    def create_classification(context: RequestContext) -> Response:
        """The probability of each class, and the name of the most likely one."""
        asked = frontend.decode(context, ClassificationRequest)
        name = enter(frontend, asked)
        inputs = prompt_ids(frontend, asked)
        head = frontend.identity.head("classify", context, asked.request_id, name)
        items = _items(model, inputs, asked.use_activation)
        return list_reply(head, items, sum(map(len, inputs)), frontend.responder.headers)

    return create_classification


def _items(model: PoolingModel, inputs: Sequence[TokenIds], activation: bool | None) -> Iterator[bytes]:
    for index, ids in enumerate(Turns().each(inputs, len)):
        scores = model.classify(ids, activation)
        item = {
            "index": index,
            "label": model.label(scores),
            "probs": scores,
            "num_classes": len(scores),
        }
        yield b"," * bool(index) + msgspec.json.encode(item)
