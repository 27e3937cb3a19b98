"""All that a server answers over gRPC, and Embed: the vector of a prompt of tokens."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Sequence
from itertools import chain

from app.api.frontend import Frontend
from app.api.grpc.events import events_method
from app.api.grpc.generate import generate_method
from app.api.grpc.information import ServerFacts
from app.api.grpc.messages import SERVICE, answer, engine, read
from app.api.grpc.standard import HEALTH, REFLECTIONS, health_methods, reflection_methods, unimplemented
from app.api.grpc.tokenizer import tokenizer_method
from app.api.identity import ResponseMeta
from app.api.pooling.places import enter, of_inputs, prompt_ids, take_places
from app.api.pooling.routes import EMBEDDINGS, served_routes
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.http.rpc import RpcMethod, RpcResponse, RpcService
from app.kvcache.event_sender import EventSender
from app.pooling.model import PoolingModel
from app.pooling.numbers import Turns
from app.protocol.pooling import EmbeddingRequest
from app.protocol.validation import check_prompt_length
from config.settings import ModelSettings


def embed_method(frontend: Frontend, settings: ModelSettings) -> RpcMethod:
    """The method, which only a model that embeds has."""
    path = f"/{SERVICE}/Embed"
    if EMBEDDINGS not in served_routes(settings):
        return unimplemented(path, "This model does not embed: that needs --task embed.")
    model = PoolingModel(settings.default_embedding_dimensions, 1, frontend.tokenizer)

    def embed(context: RequestContext) -> RpcResponse:
        """The vector that POST /v1/embeddings gives for the same tokens."""
        message = read(context, engine.EmbedRequest, frontend.limits.max_model_len)
        given = message.tokenized.input_ids
        if not given:
            raise bad_request("tokenized input is needed", "tokenized")
        check_prompt_length(len(given), frontend.limits.max_model_len)
        asked = EmbeddingRequest(input=list(given), request_id=message.request_id)
        name = enter(frontend, asked)
        inputs = prompt_ids(frontend, asked)
        meta = ResponseMeta(
            message.request_id or frontend.identity.fresh_id(), frontend.identity.now_s(), name, ""
        )
        scripted = of_inputs(frontend, asked, inputs, "embedding", name, context)
        take_places(frontend, context, asked, meta, 1, inputs.__getitem__, scripted)
        vector = scripted.vector(0)
        if not isinstance(vector, array):
            text = frontend.tokenizer.decode(inputs[0]) if vector is None else vector
            vector = model.embed(text, None, Turns())
        found = engine.EmbedResponse(prompt_tokens=scripted.tokens(len(inputs[0])), embedding_dim=len(vector))
        found.embedding.extend(vector)
        return answer(found)

    return RpcMethod(path, embed)


MEBIBYTE = 1 << 20
MOST_MESSAGE_MIB = 16
"""However large bodies of HTTP may be: to take a message apart cannot be done in slices."""


def rpc_service(
    frontend: Frontend, facts: ServerFacts, is_ready: Callable[[], bool], publisher: EventSender | None
) -> RpcService:
    """The methods, each of which does what it can for the model that is served."""
    settings = facts.settings()
    generates = settings.model.task == "generate"
    own: Sequence[RpcMethod] = [
        generate_method(frontend)
        if generates
        else unimplemented(f"/{SERVICE}/Generate", "This model pools; it does not generate."),
        embed_method(frontend, settings.model),
        events_method(publisher, facts),
        tokenizer_method(settings),
    ]
    methods = chain(
        own, facts.methods(), health_methods(is_ready), reflection_methods([SERVICE, HEALTH, *REFLECTIONS])
    )
    most = min(MOST_MESSAGE_MIB, math.ceil(settings.server.max_request_body_size_mb)) * MEBIBYTE
    return RpcService({method.path: method for method in methods}, most)
