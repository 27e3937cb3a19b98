"""Ollama's API: https://github.com/ollama/ollama/blob/main/docs/api.md."""

import json
import re
from collections.abc import Iterator

from app.extensions.recording.conversation import Json
from app.extensions.recording.exchange import Exchange
from app.extensions.recording.providers.translated import (
    CHAT,
    TranslatedExchange,
    call_piece,
    chat_chunk,
    matched,
)
from config.untrusted import decode_untrusted

PATH = re.compile(r".*/api/(chat|generate)")
COMPLETIONS = "/v1/completions"
FINISHES = {"stop": "stop", "length": "length"}
ANSWER_FIELDS = (
    "model",
    "created_at",
    "message",
    "response",
    "thinking",
    "done",
    "done_reason",
    "context",
    "total_duration",
    "load_duration",
    "prompt_eval_count",
    "prompt_eval_duration",
    "eval_count",
    "eval_duration",
)
MESSAGE_FIELDS = ("role", "content", "thinking", "tool_calls")


def translate(exchange: Exchange, body: Json) -> TranslatedExchange:
    """Returns an exchange of `PATH` as a chat, or as a completion.

    Raises:
        AttributeError, LookupError, TypeError, ValueError: it is not an exchange of this API.
    """
    is_chat = matched(PATH, exchange)[1] == "chat"
    translated = TranslatedExchange(exchange)
    translated.set_request(CHAT if is_chat else COMPLETIONS, body)
    if exchange.answer.status < 400:
        translated.set_stream(_events(translated))
    return translated


def _events(translated: TranslatedExchange) -> Iterator[tuple[float, Json]]:
    """Yields the chunks of a chat for an answer: one object, or one in each line.

    Adds to the losses.
    """
    answer = translated.exchange.answer
    call_count = 0
    for line in answer.body().splitlines():
        if not line.strip():
            continue
        part = decode_untrusted(line, type=Json)
        if "error" in part:
            yield answer.end_s, part
            continue
        translated.lose_others(part, ANSWER_FIELDS)
        message = part.get("message") or part
        delta: Json = {
            "content": message.get("content") or part.get("response") or "",
            "reasoning": message.get("thinking") or "",
            "tool_calls": [],
        }
        if message is not part:
            translated.lose_others(message, MESSAGE_FIELDS)
        for call in message.get("tool_calls") or ():
            function = call["function"]
            arguments = json.dumps(function.get("arguments") or {}, ensure_ascii=False)
            delta["tool_calls"].append(
                call_piece(call_count, call.get("id"), function["name"], arguments)
            )
            call_count += 1
        yield answer.end_s, chat_chunk(delta, _finish(part), _usage(part))


def _finish(part: Json) -> str:
    if not part.get("done"):
        return ""
    reason: str = part.get("done_reason") or "stop"
    return FINISHES.get(reason, reason)


def _usage(part: Json) -> Json:
    if "eval_count" not in part:
        return {}
    return {
        "prompt_tokens": part.get("prompt_eval_count", 0),
        "completion_tokens": part["eval_count"],
    }
