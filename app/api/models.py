"""GET /v1/models, and which model a request means."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from app.api.identity import Identity
from app.http.context import RequestContext
from app.http.errors import not_found
from app.http.response import Response, json_response
from app.http.route import Route, get
from app.lora.registry import LoRARegistry


class ServedModels:
    """The names under which the base model is served, the first of which answers show, and its adapters."""

    def __init__(self, names: Sequence[str], root: str, max_model_len: int, adapters: LoRARegistry) -> None:
        self.names = names
        self.root = root
        self.max_model_len = max_model_len
        self.adapters = adapters

    def resolve(self, asked: str | None) -> str:
        """The name to answer with; a request may leave the model out. ApiError 404 for another one."""
        if not asked or asked in self.names:
            return self.names[0]
        if asked in self.adapters:
            return asked
        known = ", ".join([*self.names, *(adapter.name for adapter in self.adapters)])
        raise not_found(f"No model `{asked}` is served here; served: {known}.", "model")

    def rows(self) -> Iterator[tuple[str, str, str | None, int | None]]:
        """Name, root, parent and context length of every model that is listed."""
        for name in self.names:
            yield name, self.root, None, self.max_model_len
        for adapter in self.adapters:
            yield adapter.name, adapter.path, self.names[0], None


def routes(models: ServedModels, identity: Identity) -> list[Route]:

    def list_models(context: RequestContext) -> Response:
        """Every served name and every adapter as a model card."""
        return json_response({"object": "list", "data": [_card(identity, *row) for row in models.rows()]})

    return [
        get("/v1/models", list_models),
    ]


def _card(
    identity: Identity, name: str, root: str, parent: str | None, max_model_len: int | None
) -> dict[str, Any]:
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
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [permission],
    }
