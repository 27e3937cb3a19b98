"""The chats that messages mean to the served model: what its chat template can say is tried once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial

from app.api.chat.prompt import chat_options
from app.api.frontend import ChatRules, Frontend
from app.protocol.anthropic_chat import Asked, chat_request
from app.protocol.chat import ChatCompletionRequest
from app.protocol.options import Effort
from app.tokenization import Tokenizer
from app.tokenization.base import ChatOptions, TokenizerInputError

THINKING_EFFORTS: Sequence[Effort] = ("low", "medium", "high", "xhigh", "max")
"""Efforts of which none may have the prompt of no thoughts, if the chat template knows that switch."""


def message_chats(frontend: Frontend) -> Callable[[Asked], ChatCompletionRequest]:
    """Returns what makes a chat of a request of this family; ApiError 400 when it breaks the rules of one."""
    tokenizer = frontend.tokenizer
    effort = frontend.builder.settings.reply.anthropic_disabled_thinking_effort
    merges_system = cache(partial(_merges_system, tokenizer))
    probe = partial(_disabled_effort, tokenizer, frontend.chat_rules)
    disabled_effort = cache(lambda: probe() if effort == "auto" else effort)
    return lambda asked: chat_request(asked, merges_system, disabled_effort)


def _merges_system(tokenizer: Tokenizer) -> bool:
    """Returns whether the chat template refuses system turns further on in a conversation."""
    turns = [{"role": role, "content": "t"} for role in ("system", "user", "system", "user")]
    try:
        tokenizer.render_chat(turns, ChatOptions(add_generation_prompt=False))
    except TokenizerInputError:
        return True
    return False


def _disabled_effort(tokenizer: Tokenizer, rules: ChatRules) -> Effort:
    """Returns the effort that means no thoughts: `low` where the chat template does not know `none`."""

    def prompt(effort: Effort) -> str:
        chat = ChatCompletionRequest(messages=[{"role": "user", "content": "Hi"}], reasoning_effort=effort)
        return tokenizer.render_chat(chat.messages, chat_options(chat, rules))

    try:
        without = prompt("none")
    except TokenizerInputError:
        return "low"
    for effort in THINKING_EFFORTS:
        with suppress(TokenizerInputError):
            if prompt(effort) == without:
                return "low"
    return "none"
