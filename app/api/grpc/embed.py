"""Embed: the vector of a prompt of tokens, of a model that pools."""

from __future__ import annotations

from array import array

from app.api.frontend import Frontend
from app.api.grpc.messages import SERVICE, answer, engine, read
from app.api.grpc.standard import unimplemented
from app.api.identity import ResponseMeta
from app.api.pooling.inputs import enter, prompt_ids
from app.api.pooling.places import take_places
from app.api.pooling.routes import EMBEDDINGS, served_routes
from app.api.pooling.scripted import of_inputs
from app.http.context import RequestContext
from app.http.errors import bad_request
from app.http.rpc import RpcMethod, RpcResponse
from app.pooling.model import PoolingModel
from app.pooling.numbers import Turns
from app.protocol.pooling import EmbeddingRequest
from app.protocol.validation.generation import check_prompt_length
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
