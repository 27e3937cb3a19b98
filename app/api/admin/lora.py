"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter."""

from __future__ import annotations

from app.api.models import ServedModels
from app.http.body import BodyLimits
from app.http.context import RequestContext
from app.http.errors import ApiError
from app.http.response import Response
from app.http.route import Route, post
from app.protocol.decoding import decode
from app.protocol.lora import LoadAdapterRequest, UnloadAdapterRequest

TEXT = "text/plain; charset=utf-8"


def routes(body: BodyLimits, models: ServedModels) -> list[Route]:

    def load(context: RequestContext) -> Response:
        """Serve an adapter from now on, under its name. Its path is told, not looked at."""
        asked = decode(body.read(context), context.content_type, LoadAdapterRequest)
        asked.check_values()
        if asked.lora_name in models.names:
            message = f"The name {asked.lora_name!r} is the base model's."
            raise ApiError(400, "InvalidUserInput", message)
        models.adapters.load(asked.lora_name, asked.lora_path, asked.load_inplace)
        return Response(f"Success: adapter {asked.lora_name!r} is loaded.".encode(), 200, content_type=TEXT)

    def unload(context: RequestContext) -> Response:
        """Serve an adapter no more; requests that run with it go on."""
        asked = decode(body.read(context), context.content_type, UnloadAdapterRequest)
        asked.check_values()
        models.adapters.unload(asked.lora_name)
        return Response(f"Success: adapter {asked.lora_name!r} is unloaded.".encode(), 200, content_type=TEXT)

    return [
        post("/v1/load_lora_adapter", load),
        post("/v1/unload_lora_adapter", unload),
    ]
