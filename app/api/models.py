"""GET /v1/models, and which model a request means."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flask import Blueprint

from app.api.identity import Identity
from app.api.replies import Reply, json_reply
from app.protocol.errors import not_found


class ServedModels:
    """The names under which the base model is served; the first is the one that answers show."""

    def __init__(self, names: Sequence[str], root: str, max_model_len: int) -> None:
        self.names = names
        self.root = root
        self.max_model_len = max_model_len

    def resolve(self, asked: str | None) -> str:
        """The name to answer with; a request may leave the model out. ApiError 404 for another one."""
        if asked and asked not in self.names:
            raise not_found(f"No model `{asked}` is served here; served: {', '.join(self.names)}.", "model")
        return self.names[0]


def blueprint(models: ServedModels, identity: Identity) -> Blueprint:
    routes = Blueprint("models", __name__)

    @routes.get("/v1/models")
    def list_models() -> Reply:
        """Every served name as a model card."""
        return json_reply(
            {"object": "list", "data": [_card(models, name, identity) for name in models.names]}
        )

    return routes


def _card(models: ServedModels, name: str, identity: Identity) -> dict[str, Any]:
    created = identity.now_s()
    permission = {
        "id": f"modelperm-{identity.fresh_id()}",
        "object": "model_permission",
        "created": created,
        "allow_create_engine": False,
        "allow_sampling": True,
        "allow_logprobs": True,
        "allow_search_indices": False,
        "allow_view": True,
        "allow_fine_tuning": False,
        "organization": "*",
        "group": None,
        "is_blocking": False,
    }
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "vllm",
        "root": models.root,
        "parent": None,
        "max_model_len": models.max_model_len,
        "permission": [permission],
    }
