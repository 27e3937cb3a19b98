"""Served models: GET /v1/models, and the model that a request names."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from msgspec import Struct

from app.core.api.identity import Identity
from app.core.engine.lora import LoRARegistry
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import not_found
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import Route, get

MAX_NAME_CHARS = 256
"""Longest model name that a server of any name accepts: each event of a stream has it."""
PERMISSION = {
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


class ServedModel(NamedTuple):
    """A served name: of the base model, or of an adapter with the base model as its parent."""

    name: str
    root: str
    parent: str | None
    max_model_len: int | None


class ServedModels(Struct, frozen=True):
    """Served names of the base model, and its adapters.

    Answers show the first name. With `any_name`, they show the name of the request.
    """

    names: Sequence[str]
    root: str
    max_model_len: int
    adapters: LoRARegistry
    any_name: bool = False

    def resolve(self, name: str | None, param: str | None = "model") -> str:
        """Returns the model's name for an answer; a request may omit it.

        Raises:
            ApiError: 404, with `param`.
        """
        if not name or name in self.names:
            return self.names[0]
        if name in self.adapters or (self.any_name and len(name) <= MAX_NAME_CHARS):
            return name
        served = ", ".join([*self.names, *(adapter.name for adapter in self.adapters)])
        raise not_found(f"The model `{name}` does not exist. Valid aliases: {served}.", param)

    def adapter_of(self, model: str) -> str | None:
        """Returns the adapter of a resolved name; None for the base model."""
        is_base = model in self.names or (self.any_name and model not in self.adapters)
        if is_base:
            return None
        return model

    def all(self) -> Iterator[ServedModel]:
        """Yields all served names: of the base model, then of adapters."""
        for name in self.names:
            yield ServedModel(name, self.root, None, self.max_model_len)
        for adapter in self.adapters:
            yield ServedModel(adapter.name, adapter.path, self.names[0], None)


def routes(models: ServedModels, identity: Identity) -> list[Route]:
    """Returns the route that lists all models."""

    def list_models(context: RequestContext) -> Response:
        """Lists every served name and adapter: as model cards, or in Anthropic's form."""
        if "anthropic-version" in context.headers:
            return json_response(anthropic_models(models, identity.now_s()))
        return json_response({"object": "list", "data": model_cards(models, identity)})

    return [get("/v1/models", list_models)]


def model_cards(models: ServedModels, identity: Identity) -> list[dict[str, object]]:
    """Returns a card for each served name."""
    now_s = identity.now_s()
    cards = []
    for model in models.all():
        permission = {
            "id": f"modelperm-{identity.fresh_id()}",
            "object": "model_permission",
            "created": now_s,
            **PERMISSION,
        }
        card: dict[str, object] = {
            "id": model.name,
            "object": "model",
            "created": now_s,
            "owned_by": "vllm",
            "root": model.root,
            "parent": model.parent,
            "max_model_len": model.max_model_len,
            "permission": [permission],
        }
        cards.append(card)
    return cards


def anthropic_models(models: ServedModels, now_s: int) -> dict[str, object]:
    """Returns all served names in the form of Anthropic's SDK."""
    created_at = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    names = [model.name for model in models.all()]
    data = [
        {
            "id": name,
            "display_name": name,
            "type": "model",
            "created_at": created_at,
            "lifecycle": "active",
            "max_input_tokens": models.max_model_len,
            "max_tokens": models.max_model_len,
        }
        for name in names
    ]
    return {"data": data, "has_more": False, "first_id": names[0], "last_id": names[-1]}
