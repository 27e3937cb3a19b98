"""The body of ``POST /v1/chat/completions/batch``: several conversations, each answered by one choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from app.http.errors import bad_request
from app.protocol.chat import ChatCompletionRequest
from app.protocol.coercion import Misfit
from app.protocol.messages import Message, check_tool_calls, convert_messages, normalize_messages
from app.protocol.tools import ToolChoice
from app.protocol.validation import rules

Conversations = list[list[Message]]


def convert_conversations(value: Any) -> Conversations:
    """The conversations in `value`, normalized; raises `Misfit`."""
    if not isinstance(value, list) or not value:
        raise Misfit("a list of conversations")
    for index, conversation in enumerate(value):
        try:
            convert_messages(conversation)
        except Misfit as misfit:
            raise misfit.under(index) from None
    return value


class BatchChatRequest(ChatCompletionRequest, kw_only=True):
    """As a chat request, but `messages` is a list of conversations."""

    messages: Conversations  # type: ignore[assignment]

    lax: ClassVar[Mapping[str, Any]] = {"messages": convert_conversations, "tool_choice": ToolChoice}
    absent: ClassVar[Mapping[str, Any]] = {"messages": [], "tool_choice": "none"}

    def check(self) -> None:
        convert_conversations(self.messages)
        self.check_rules(self)
        self.check_converted()

    def check_converted(self) -> None:
        for conversation in self.messages:
            check_tool_calls(conversation)

    @staticmethod
    def check_rules(request: Any) -> None:
        for name in ("stream", "tools", "use_beam_search"):
            if getattr(request, name):
                raise bad_request(f"A batch does not go with {name}.", name)
        if request.n not in (None, 1):
            raise bad_request("Every conversation of a batch has one choice: n must be 1.", "n")
        if not isinstance(request.messages, list) or not request.messages:
            raise bad_request("messages must be a list of conversations", "messages")
        for conversation in request.messages:
            normalize_messages(conversation)
        rules.check_continuation(request)
        rules.check_response_format(request.response_format)
        rules.check_cache_salt(request.cache_salt)
        rules.check_thinking_budget(request.thinking_token_budget)
