"""POST /classify: how likely each class is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec
from flask import request

from app.api.door import Door
from app.api.pooling.inputs import enter, prompt_ids
from app.api.pooling.writer import list_reply
from app.http.response import Reply
from app.pooling.model import PoolingModel
from app.pooling.turns import Turns
from app.protocol.pooling import ClassificationRequest, TokenIds


def classification(door: Door, model: PoolingModel) -> Callable[[], Reply]:
    """The view of /classify."""

    def create_classification() -> Reply:
        """The probability of each class, and the name of the most likely one."""
        asked = door.decode(request.environ, ClassificationRequest)
        name = enter(door, asked)
        inputs = prompt_ids(door, asked)
        head = door.identity.head("classify", request.environ, asked.request_id, name)
        items = _items(model, inputs, asked.use_activation)
        return list_reply(head, items, sum(map(len, inputs)), door.delivery.headers)

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
