"""Stored conversations of the Anthropic family, continued by the id of their last reply."""

from sys import getsizeof

import msgspec
from msgspec import Struct

from app.core.base.caches import Memo
from app.core.protocol.coercion import JsonObject
from app.core.protocol.common import encode_to_keep
from app.extensions.anthropic.errors import ThreadNotFoundError
from app.extensions.anthropic.protocol import (
    AnthropicBlock,
    MessageParam,
    MessagesRequest,
    ThreadContinue,
    ToolParam,
)

Threads = Memo[str, bytes]
"""Conversations as JSON, by the id of their last reply."""


class Thread(Struct):
    """A conversation up to a reply, with its system prompt and its tools."""

    messages: list[MessageParam]
    system: str | list[AnthropicBlock] | None
    tools: list[ToolParam] | None


def resume(threads: Threads, request: MessagesRequest) -> None:
    """Inserts the stored conversation, its system prompt and its tools into `request`.

    Raises:
        ThreadNotFoundError: for an unknown or evicted conversation.
    """
    if not isinstance(request.thread, ThreadContinue):
        return
    message_id = request.thread.previous_message_id
    data = threads.get(message_id)
    if data is None:
        raise ThreadNotFoundError(message_id)
    thread = msgspec.json.decode(data, type=Thread)
    request.messages = [*thread.messages, *request.messages]
    request.system = thread.system
    request.tools = thread.tools


def store_thread(
    threads: Threads, request: MessagesRequest, message_id: str, reply: list[JsonObject]
) -> None:
    """Stores the conversation of `request` up to the blocks of its reply."""
    conversation = {
        "messages": [*request.messages, {"role": "assistant", "content": reply}],
        "system": request.system,
        "tools": request.tools,
    }
    data = encode_to_keep(conversation)
    threads.put(message_id, data, getsizeof(data) + getsizeof(message_id))
