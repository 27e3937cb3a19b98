"""Thoughts that the token limit ends, for parsers that need the closing mark of thoughts.

A whole answer of these releases has such thoughts in its text, with their opening mark. Streams
have them as thoughts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from app.core.api.chat.rules import ChatRules
from app.core.protocol.coercion import JsonObject
from app.core.versions.change import Answer
from app.core.versions.paths import CHATS

if TYPE_CHECKING:
    from app.core.versions.chain import PlayedVersion
    from config.sections.reply import ReplySettings

RESPONSES = "/v1/responses"
NAMES = ("reasoning", "reasoning_content")
MARK = "<think>"
"""Opening mark of the parser `qwen3`, the only one with this rule."""


def unended_thoughts(path: str, played: PlayedVersion, settings: ReplySettings) -> Sequence[Answer]:
    """Returns what moves thoughts without an end into the content, for a route."""
    strict = played.rules(ChatRules).strict_parsers
    if settings.reasoning_parser not in strict:
        return ()
    if path in CHATS:
        return [Answer(paths=(path,), whole=with_thoughts_as_text)]
    if path == RESPONSES:
        return [Answer(paths=(path,), whole=with_thoughts_as_message)]
    return ()


def with_thoughts_as_text(answer: Any, request: JsonObject) -> None:
    """Moves the thoughts of choices that ended at the token limit into their content."""
    for choice in answer.get("choices", ()):
        message = choice["message"]
        thoughts = [message[name] for name in NAMES if message.get(name)]
        has_reply = message["content"] is not None or message.get("tool_calls")
        if choice["finish_reason"] == "length" and thoughts and not has_reply:
            message["content"] = MARK + thoughts[0]
            for name in NAMES:
                if name in message:
                    message[name] = None


def with_thoughts_as_message(answer: Any, request: JsonObject) -> None:
    """Makes a message of thoughts that are the whole output of a response at its limit."""
    output: list[JsonObject] = answer.get("output") or []
    usage: JsonObject = answer.get("usage") or {}
    is_cut = usage.get("output_tokens") == request.get("max_output_tokens")
    if not is_cut or len(output) != 1 or output[0]["type"] != "reasoning":
        return
    thought: Any = output[0]
    text = "".join(part["text"] for part in thought["content"] or ())
    answer["output"] = [
        {
            "id": thought["id"].replace("rs_", "msg_", 1),
            "content": [
                {"annotations": [], "text": MARK + text, "type": "output_text", "logprobs": None}
            ],
            "role": "assistant",
            "status": "completed",
            "type": "message",
        }
    ]
