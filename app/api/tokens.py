"""POST /tokenize and POST /detokenize (vllm-api.md section 5)."""

from __future__ import annotations

from flask import Blueprint, request

from app.api.chat.prompt import chat_options
from app.api.models import ServedModels
from app.http.body import BodyLimits
from app.http.response import Reply, json_reply
from app.protocol.decoding import decode, decode_first
from app.protocol.tokenize import TOKENIZE_REQUESTS, DetokenizeRequest, TokenizeChatRequest
from app.tokenization import Tokenizer


def blueprint(body: BodyLimits, models: ServedModels, tokenizer: Tokenizer) -> Blueprint:
    routes = Blueprint("tokens", __name__)

    @routes.post("/tokenize")
    def tokenize() -> Reply:
        """The token ids of a text or of a conversation."""
        asked = decode_first(body.read(request.environ), request.content_type, TOKENIZE_REQUESTS)
        models.resolve(asked.model)
        if isinstance(asked, TokenizeChatRequest):
            ids = tokenizer.encode_chat(asked.messages, chat_options(asked))
        else:
            ids = tokenizer.encode(asked.prompt, asked.add_special_tokens)
        return json_reply(
            {
                "count": len(ids),
                "max_model_len": models.max_model_len,
                "tokens": ids,
                "token_strs": tokenizer.token_strings(ids) if asked.return_token_strs else None,
            }
        )

    @routes.post("/detokenize")
    def detokenize() -> Reply:
        """The text of token ids."""
        asked = decode(body.read(request.environ), request.content_type, DetokenizeRequest)
        models.resolve(asked.model)
        return json_reply({"prompt": tokenizer.decode(asked.tokens, False)})

    return routes
