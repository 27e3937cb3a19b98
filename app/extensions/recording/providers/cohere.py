"""Cohere's Chat API, version 2: https://docs.cohere.com/reference/chat."""

import re
from collections.abc import Iterator

from app.extensions.recording.conversation import Json
from app.extensions.recording.exchange import Exchange
from app.extensions.recording.providers.translated import (
    CHAT,
    TranslatedExchange,
    call_piece,
    chat_chunk,
)
from app.extensions.recording.recorded_reply import parts_of

PATH = re.compile(r".*/v2/chat")
FINISHES = {
    "COMPLETE": "stop",
    "STOP_SEQUENCE": "stop",
    "TOOL_CALL": "tool_calls",
    "MAX_TOKENS": "length",
}
ANSWER_FIELDS = ("id", "finish_reason", "message", "usage", "prompt", "meta")
MESSAGE_FIELDS = ("role", "content", "tool_calls")
TOOL_PLAN = "tool_plan"
"""The thoughts before a tool call, which vLLM's server also returns as reasoning."""


def translate(exchange: Exchange, body: Json) -> TranslatedExchange:
    """Returns an exchange of `PATH`, whose request has the JSON `body`, as a chat of OpenAI's.

    Raises:
        AttributeError, LookupError, TypeError, ValueError: it is not an exchange of this API.
    """
    translated = TranslatedExchange(exchange, is_any_api=True)
    translated.set_request(CHAT, body)
    if exchange.answer.status < 400:
        translated.set_stream(_events(translated))
    return translated


def _events(translated: TranslatedExchange) -> Iterator[tuple[float, Json]]:
    """Yields the chunks of a chat for an answer, whole or streamed. Adds to the losses."""
    for at_s, event in parts_of(translated.exchange.answer):
        kind = event.get("type")
        if kind is None:
            translated.lose_others(event, ANSWER_FIELDS)
            yield at_s, chat_chunk(_delta(event["message"], 0, translated))
            yield at_s, _end(event)
            continue
        delta = event.get("delta") or {}
        if kind == "message-end":
            yield at_s, _end(delta)
        elif delta.get("message"):
            message = delta["message"]
            yield at_s, chat_chunk(_delta(message, event.get("index", 0), translated))


def _end(fields: Json) -> Json:
    """Returns the end of a chat's stream."""
    reason: str = fields["finish_reason"]
    tokens = (fields.get("usage") or {}).get("tokens") or {}
    usage: Json = {}
    if "input_tokens" in tokens:
        usage = {
            "prompt_tokens": tokens["input_tokens"],
            "completion_tokens": tokens["output_tokens"],
        }
    return chat_chunk({}, FINISHES.get(reason, reason), usage)


def _delta(message: Json, index: int, translated: TranslatedExchange) -> Json:
    """Returns the texts and calls of a message, or of a piece of one. Adds to the losses."""
    translated.lose_others(message, (*MESSAGE_FIELDS, TOOL_PLAN))
    delta: Json = {"content": "", "reasoning": message.get(TOOL_PLAN) or "", "tool_calls": []}
    content = message.get("content") or ()
    if isinstance(content, str):
        content = {"text": content}
    for part in [content] if isinstance(content, dict) else content:
        translated.lose_others(part, ("type", "text", "thinking"))
        delta["content"] += part.get("text") or ""
        delta["reasoning"] += part.get("thinking") or ""
    calls = message.get("tool_calls") or ()
    for position, call in enumerate([calls] if isinstance(calls, dict) else calls):
        function = call["function"]
        name = function.get("name") or ""
        arguments = function.get("arguments") or ""
        delta["tool_calls"].append(call_piece(index + position, call.get("id"), name, arguments))
    return delta
