"""Prompts of Understudy, without a server."""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from app.core.api.chat.prompt import chat_options
from app.core.api.chat.rules import ChatRules
from app.core.protocol.chat import ChatCompletionRequest
from app.core.protocol.decoding import decode
from app.core.protocol.tokenize import TokenizeChatRequest
from app.core.server.http.response import JSON
from app.core.text.base import ChatOptions, ChatTemplateError
from app.core.text.chat_template import ChatTemplates
from app.extensions.anthropic import protocol as anthropic
from app.extensions.responses import chat as responses
from app.extensions.responses.protocol import ResponsesRequest

PROBE = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]


class PromptRenderer:
    """Renders requests of all APIs with one template."""

    def __init__(self, template: str, tokens: Mapping[str, str], now: datetime) -> None:
        self._templates = ChatTemplates({"default": template}, tokens, now=lambda: now)

    def prompt(self, api: str, body: Any) -> str:
        """Returns the prompt of a request.

        Raises:
            ApiError, ChatTemplateError: The request is rejected.
        """
        request = self._read(api, json.dumps(body).encode())
        options = chat_options(request, ChatRules())
        return self._templates.render(request.messages, options)

    def _read(self, api: str, body: bytes) -> ChatCompletionRequest | TokenizeChatRequest:
        if api == "chat":
            return decode(body, JSON, ChatCompletionRequest)
        if api == "tokenize":
            return decode(body, JSON, TokenizeChatRequest)
        if api == "responses":
            return responses.chat_request(decode(body, JSON, ResponsesRequest))
        request = decode(body, JSON, anthropic.MessagesRequest)
        return anthropic.chat_request(request, self._merges_system, disabled_effort=lambda: "none")

    def _merges_system(self) -> bool:
        """Returns true if the template rejects a system message that is not the first one."""
        try:
            self._templates.render(PROBE, ChatOptions(add_generation_prompt=False))
        except ChatTemplateError:
            return True
        return False
