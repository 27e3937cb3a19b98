"""The bodies of ``POST /tokenize``, with its two forms, and ``POST /detokenize`` (vllm-api.md section 5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from app.protocol.coercion import Misfit
from app.protocol.messages import Message, convert_messages, is_plain
from app.protocol.options import INT64_MAX
from app.protocol.request import Request
from app.protocol.tools import Tool
from app.protocol.validation import rules


class TokenizeChatRequest(Request, kw_only=True):
    """Tokens of a rendered conversation."""

    model: str | None = None
    messages: list[Message]
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None

    lax: ClassVar[Mapping[str, Any]] = {"messages": convert_messages}

    def check(self) -> None:
        if not all(map(is_plain, self.messages)):
            convert_messages(self.messages)
        if self.continue_final_message:
            raise Misfit("add_generation_prompt to be absent or false")

    @staticmethod
    def check_rules(request: Any) -> None:
        rules.check_continuation(request)


class TokenizePromptRequest(Request, kw_only=True):
    """Tokens of a text."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


TokenizeRequest = TokenizeChatRequest | TokenizePromptRequest
TOKENIZE_REQUESTS = (TokenizeChatRequest, TokenizePromptRequest)
"""Both forms, as `decode_first` wants them: messages win over a prompt."""


class DetokenizeRequest(Request, kw_only=True):
    """The text of token ids; ids beyond the vocabulary are no error here."""

    model: str | None = None
    tokens: list[Annotated[int, Meta(ge=0, le=INT64_MAX)]]
