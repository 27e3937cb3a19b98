"""Routes that load and unload adapters, of vLLM and of SageMaker."""

from functools import partial

from app.core.api.models import ServedModels
from app.core.engine.lora import AdapterError
from app.core.protocol.coercion import ConversionError
from app.core.protocol.convert import convert
from app.core.protocol.decoding import Request, decode, read_json
from app.core.protocol.rules import check_unicode
from app.core.server.http.body_limits import BodyLimits
from app.core.server.http.context import RequestContext
from app.core.server.http.errors import malformed
from app.core.server.http.response import Response
from app.core.server.http.route import Route, RouteDocs, post
from app.extensions.adapters.files import check_adapter_files
from app.extensions.adapters.rules import AdapterRules
from config.settings import LoraSettings


class LoadAdapterRequest(Request, kw_only=True):
    """The body of ``POST /v1/load_lora_adapter``."""

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
    """The body of ``POST /v1/unload_lora_adapter``."""

    lora_name: str
    lora_int_id: int | None = None


def adapter_routes(
    body: BodyLimits, models: ServedModels, lora: LoraSettings, rules: AdapterRules
) -> list[Route]:
    """Returns the routes that load and unload adapters, of vLLM and of SageMaker."""
    load = partial(_load, models, lora, rules)

    def load_lora_adapter(context: RequestContext) -> Response:
        """Serves an adapter from now on, under its name. At most its rank is read from its path."""
        request = decode(body.read(context), context.content_type, LoadAdapterRequest)
        load(request.lora_name, request.lora_path, request.load_inplace)
        return Response(f"Success: LoRA adapter '{request.lora_name}' added successfully.".encode())

    def register_adapter(context: RequestContext) -> Response:
        """Serves an adapter from now on."""
        value = read_json(body.read(context))
        check_unicode(value)
        try:
            request = convert(RegisterAdapterRequest, value)
        except ConversionError as misfit:
            path = ".".join(map(str, misfit.path))
            raise malformed(f"{path}: expected {misfit.expected} [type={misfit.kind}]") from None
        load(request.name, request.src)
        return Response(f"Adapter {request.name} is registered.".encode())

    def unregister_adapter(context: RequestContext) -> Response:
        """Stops serving an adapter; its running requests continue."""
        name = context.params["adapter_name"]
        models.adapters.unload(name)
        return Response(f"Adapter {name} is unregistered.".encode())

    def unload(context: RequestContext) -> Response:
        """Stops serving an adapter; its running requests continue."""
        request = decode(body.read(context), context.content_type, UnloadAdapterRequest)
        if not request.lora_name:
            raise AdapterError("'lora_name' needs to be provided to unload a LoRA adapter.")
        models.adapters.unload(request.lora_name)
        return Response(
            f"Success: LoRA adapter '{request.lora_name}' removed successfully.".encode()
        )

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


def _load(
    models: ServedModels,
    lora: LoraSettings,
    rules: AdapterRules,
    name: str,
    path: str,
    in_place: bool = False,
) -> None:
    if not name or not path:
        raise AdapterError("Both 'lora_name' and 'lora_path' must be provided.")
    if rules.protects_models and name in models.names:
        raise AdapterError(f"The lora adapter '{name}' conflicts with a served base model.")
    if in_place or name not in models.adapters:
        check_adapter_files(name, path, lora)
    models.adapters.load(name, path, in_place)
