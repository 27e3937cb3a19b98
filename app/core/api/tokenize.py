"""POST /tokenize, POST /detokenize and GET /tokenizer_info."""

from collections.abc import Sequence

from msgspec import Struct

from app.core.api.chat.prompt import chat_options
from app.core.api.pipeline import RequestPipeline
from app.core.protocol.decoding import decode
from app.core.protocol.tokenize import (
    DetokenizeRequest,
    TokenizeChatRequest,
    TokenizePromptRequest,
)
from app.core.protocol.validation import check_media_options
from app.core.server.http.context import RequestContext
from app.core.server.http.response import Response, json_response
from app.core.server.http.route import Route, RouteDocs, get, post
from app.core.text.huggingface import LocalTokenizer

TOKENIZE_REQUESTS: tuple[type[TokenizeChatRequest | TokenizePromptRequest], ...] = (
    TokenizeChatRequest,
    TokenizePromptRequest,
)
"""The two forms of a body of ``POST /tokenize``, in order of trial."""


class TokensAnswer(Struct):
    """The answer of POST /tokenize."""

    count: int
    max_model_len: int
    tokens: Sequence[int]
    token_strs: Sequence[str] | None


def routes(pipeline: RequestPipeline, with_info: bool) -> list[Route]:
    """Returns the routes; `with_info` adds GET /tokenizer_info."""
    body = pipeline.body
    models = pipeline.models
    tokenizer = pipeline.tokenizer

    def tokenize(context: RequestContext) -> Response:
        """The token IDs of a text or of a conversation."""
        values = pipeline.version.read(context.label, body.read(context))
        request = decode(values, context.content_type, *TOKENIZE_REQUESTS)
        models.resolve(request.model)
        if isinstance(request, TokenizeChatRequest):
            check_media_options(request)
            place_media = None
            if pipeline.media is not None:
                place_media = pipeline.media().read(request.messages, request, renders_only=True)
            ids: Sequence[int] = tokenizer.encode_chat(
                request.messages, chat_options(request, pipeline.chat_rules)
            )
            if place_media is not None:
                ids, _ = place_media(ids)
        else:
            ids = tokenizer.encode(request.prompt, request.add_special_tokens)
        texts = tokenizer.token_strings(ids) if request.return_token_strs else None
        return json_response(TokensAnswer(len(ids), models.max_model_len, ids, texts))

    def detokenize(context: RequestContext) -> Response:
        """The text of token IDs."""
        request = decode(body.read(context), context.content_type, DetokenizeRequest)
        models.resolve(request.model)
        return json_response({"prompt": tokenizer.decode(request.tokens, False)})

    def tokenizer_info(context: RequestContext) -> Response:
        """The configuration of the tokenizer; of a remote tokenizer only its class."""
        if isinstance(tokenizer, LocalTokenizer):
            is_pooling = pipeline.live.current.model.task != "generate"
            side = "right" if is_pooling else "left"
            return json_response(tokenizer.info() | {"truncation_side": side})
        return json_response({"tokenizer_class": type(tokenizer).__name__})

    tokenize_docs = RouteDocs(
        body=TOKENIZE_REQUESTS,
        example={"prompt": "hello"},
        answer=TokensAnswer,
    )
    detokenize_docs = RouteDocs(body=(DetokenizeRequest,), example={"tokens": [120, 121]})
    token_routes = [
        post("/tokenize", tokenize, docs=tokenize_docs),
        post("/detokenize", detokenize, docs=detokenize_docs),
    ]
    if with_info:
        token_routes.append(get("/tokenizer_info", tokenizer_info))
    return token_routes
