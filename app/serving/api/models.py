"""Served models: GET /v1/models, loading of adapters, and the model that a request names."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from app.engine.lora import AdapterError, LoRARegistry
from app.serving.api.identity import Identity
from app.serving.http.context import BodyLimits, RequestContext
from app.serving.http.errors import malformed, not_found
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, RouteDocs, get, post
from app.serving.protocol.coercion import ConversionError, convert
from app.serving.protocol.decoding import Request, decode, read_json
from app.serving.protocol.rules import check_unicode

MOST_NAME = 256
"""Longest name of a model that a server of any name takes, in characters:

each event of a stream has it.
"""


class ServedModels(Struct, frozen=True):
    """Served names of the base model, and its adapters; answers show the first name, or `any_name`."""

    names: Sequence[str]
    root: str
    max_model_len: int
    adapters: LoRARegistry
    any_name: bool = False

    def resolve(self, asked: str | None, param: str | None = "model") -> str:
        """Returns the model's name for an answer; a request may name none.

        ApiError 404, with `param`.
        """
        if not asked or asked in self.names:
            return self.names[0]
        if asked in self.adapters or (self.any_name and len(asked) <= MOST_NAME):
            return asked
        known = ", ".join([*self.names, *(adapter.name for adapter in self.adapters)])
        raise not_found(f"No model `{asked}` is served here; served: {known}.", param)

    def adapter_of(self, model: str) -> str | None:
        """Returns the adapter of a resolved name; None for the base model."""
        is_base = model in self.names or (self.any_name and model not in self.adapters)
        return None if is_base else model

    def rows(self) -> Iterator[tuple[str, str, str | None, int | None]]:
        for name in self.names:
            yield name, self.root, None, self.max_model_len
        for adapter in self.adapters:
            yield adapter.name, adapter.path, self.names[0], None


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


def routes(models: ServedModels, identity: Identity) -> list[Route]:

    def list_models(context: RequestContext) -> Response:
        """Lists every served name and adapter:

        as model cards, or in the form of Anthropic's SDK.
        """
        now_s = identity.now_s()
        if "anthropic-version" in context.headers:
            created_at = datetime.fromtimestamp(now_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            names, longest = [name for name, *_ in models.rows()], models.max_model_len
            limits = {"lifecycle": "active", "max_input_tokens": longest, "max_tokens": longest}
            same = {"type": "model", "created_at": created_at, **limits}
            data = [{"id": name, "display_name": name, **same} for name in names]
            ends = {"first_id": names[0], "last_id": names[-1]}
            return json_response({"data": data, "has_more": False, **ends})
        cards = []
        for name, root, parent, max_model_len in models.rows():
            permission = {"id": f"modelperm-{identity.fresh_id()}", "object": "model_permission"}
            card = {
                "id": name,
                "object": "model",
                "created": now_s,
                "owned_by": "vllm",
                "root": root,
            }
            card |= {"parent": parent, "max_model_len": max_model_len}
            cards.append({**card, "permission": [{**permission, "created": now_s, **PERMISSION}]})
        return json_response({"object": "list", "data": cards})

    return [get("/v1/models", list_models)]


class LoadAdapterRequest(Request, kw_only=True):
    lora_name: str
    lora_path: str
    load_inplace: bool = False
    is_3d_lora_weight: bool = False
    base_model_name: str | None = None


class RegisterAdapterRequest(Request, kw_only=True):
    """The body of SageMaker's ``POST /adapters``."""

    name: str
    src: str


class UnloadAdapterRequest(Request, kw_only=True):
    lora_name: str
    lora_int_id: int | None = None


def adapter_routes(body: BodyLimits, models: ServedModels) -> list[Route]:
    def load(asked: LoadAdapterRequest) -> None:
        if not asked.lora_name or not asked.lora_path:
            raise AdapterError("lora_name and lora_path must not be empty.")
        if asked.lora_name in models.names:
            raise AdapterError(f"The name {asked.lora_name!r} is the base model's.")
        models.adapters.load(asked.lora_name, asked.lora_path, asked.load_inplace)

    def load_lora_adapter(context: RequestContext) -> Response:
        """Serves an adapter from now on, under its name. At most its rank is read from its path."""
        asked = decode(body.read(context), context.content_type, LoadAdapterRequest)
        load(asked)
        return Response(f"Success: adapter {asked.lora_name!r} is loaded.".encode())

    def register_adapter(context: RequestContext) -> Response:
        """Serves an adapter from now on."""
        value = read_json(body.read(context))
        check_unicode(value)
        try:
            asked = convert(RegisterAdapterRequest, value)
        except ConversionError as error:
            raise malformed(
                f"{'.'.join(map(str, error.path))}: expected {error.expected}"
            ) from None
        load(LoadAdapterRequest(lora_name=asked.name, lora_path=asked.src))
        return Response(f"Adapter {asked.name} is registered.".encode())

    def unregister_adapter(context: RequestContext) -> Response:
        """Stops serving an adapter; its running requests continue."""
        name = context.params["adapter_name"]
        models.adapters.unload(name)
        return Response(f"Adapter {name} is unregistered.".encode())

    def unload(context: RequestContext) -> Response:
        """Stops serving an adapter; its running requests continue."""
        asked = decode(body.read(context), context.content_type, UnloadAdapterRequest)
        if not asked.lora_name:
            raise AdapterError("lora_name must not be empty.")
        models.adapters.unload(asked.lora_name)
        return Response(f"Success: adapter {asked.lora_name!r} is unloaded.".encode())

    load_docs = RouteDocs(
        body=(LoadAdapterRequest,),
        example={"lora_name": "sql", "lora_path": "/sql"},
    )
    unload_docs = RouteDocs(body=(UnloadAdapterRequest,), example={"lora_name": "sql"})
    register_docs = RouteDocs(
        body=(RegisterAdapterRequest,),
        example={"name": "sql", "src": "/sql"},
    )
    return [
        post("/v1/load_lora_adapter", load_lora_adapter, docs=load_docs),
        post("/v1/unload_lora_adapter", unload, docs=unload_docs),
        post("/adapters", register_adapter, docs=register_docs),
        Route(methods=("DELETE",), path="/adapters/{adapter_name}", handle=unregister_adapter),
    ]
