"""POST /tokenize, POST /detokenize and GET /tokenizer_info (vllm-api.md section 5)."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from app.serving.api.chat.prompt import chat_options
from app.serving.api.pipeline import RequestPipeline
from app.serving.http.context import RequestContext
from app.serving.http.response import Response, json_response
from app.serving.http.route import Route, get, post
from app.serving.protocol.decoding import decode, decode_first
from app.serving.protocol.tokenize import TOKENIZE_REQUESTS, DetokenizeRequest, TokenizeChatRequest
from app.text.huggingface import LocalTokenizer


class TokensAnswer(Struct):
    count: int
    max_model_len: int
    tokens: Sequence[int]
    token_strs: Sequence[str] | None


def routes(pipeline: RequestPipeline, with_info: bool) -> list[Route]:
    body, models, tokenizer = pipeline.body, pipeline.models, pipeline.tokenizer

    def tokenize(context: RequestContext) -> Response:
        """The token ids of a text or of a conversation."""
        asked = decode_first(body.read(context), context.content_type, TOKENIZE_REQUESTS)
        models.resolve(asked.model)
        if isinstance(asked, TokenizeChatRequest):
            ids = tokenizer.encode_chat(asked.messages, chat_options(asked, pipeline.chat_rules))
        else:
            ids = tokenizer.encode(asked.prompt, asked.add_special_tokens)
        texts = tokenizer.token_strings(ids) if asked.return_token_strs else None
        return json_response(TokensAnswer(len(ids), models.max_model_len, ids, texts))

    def detokenize(context: RequestContext) -> Response:
        """The text of token ids."""
        asked = decode(body.read(context), context.content_type, DetokenizeRequest)
        models.resolve(asked.model)
        return json_response({"prompt": tokenizer.decode(asked.tokens, False)})

    def tokenizer_info(context: RequestContext) -> Response:
        """The configuration of the tokenizer; of a remote one only its class."""
        if isinstance(tokenizer, LocalTokenizer):
            return json_response(tokenizer.info())
        return json_response({"tokenizer_class": type(tokenizer).__name__})

    return [
        post("/tokenize", tokenize),
        post("/detokenize", detokenize),
        *([get("/tokenizer_info", tokenizer_info)] if with_info else []),
    ]
