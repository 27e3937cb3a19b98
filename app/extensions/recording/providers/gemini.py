"""Gemini's API, of Google and of Vertex AI: https://ai.google.dev/api/generate-content."""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from app.extensions.recording.conversation import Json
from app.extensions.recording.exchange import Exchange, RecordedAnswer
from app.extensions.recording.providers.translated import (
    CHAT,
    TranslatedExchange,
    call_piece,
    chat_chunk,
    function_tool,
    matched,
)
from app.extensions.recording.recorded_reply import BYTE_ORDER_MARK, parts_of
from app.extensions.recording.reply_fields import REMARKS
from config.untrusted import decode_untrusted

PATH = re.compile(
    r".*/([^/:]+):(generateContent|streamGenerateContent|embedContent|batchEmbedContents)"
)
EMBEDDING_METHODS = ("embedContent", "batchEmbedContents")
FINISHES = {
    "STOP": "stop",
    1: "stop",
    "MAX_TOKENS": "length",
    2: "length",
    "SAFETY": "content_filter",
    3: "content_filter",
    "RECITATION": "content_filter",
    4: "content_filter",
    "BLOCKLIST": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "SPII": "content_filter",
    "MODEL_ARMOR": "content_filter",
}
"""Finish reasons of chats; some clients write the numbers of the enumeration."""
CANDIDATE_FIELDS = ("content", "finishReason", "finishMessage", "index", "tokenCount", *REMARKS)
"""Fields of a candidate that are carried over, or repeat others."""
PART_FIELDS = ("text", "thought", "thoughtSignature", "functionCall")
CALL_FIELDS = ("name", "args", "id")
SCHEMA_TYPES = ("null", "string", "number", "integer", "boolean", "array", "object")
"""Types of JSON Schema; some clients write their numbers, from 1."""
MAX_SCHEMA_DEPTH = 64


def translate(exchange: Exchange, body: Json) -> TranslatedExchange:
    """Returns an exchange of `PATH`, whose request has the JSON `body`, as one of OpenAI's API.

    Raises:
        AttributeError, LookupError, TypeError, ValueError: it is not an exchange of this API.
    """
    model, method = matched(PATH, exchange).groups()
    translated = TranslatedExchange(exchange)
    if method in EMBEDDING_METHODS:
        _set_embeddings(translated, body, model)
        return translated
    messages = list(_messages(body))
    translated.set_request(
        CHAT, {"model": model, "messages": messages, "tools": list(_tools(body))}
    )
    if exchange.answer.status >= 400:
        _set_error(translated)
        return translated
    call_count = 0
    events: list[tuple[float, Json]] = []
    for at_s, part in _answers(exchange.answer):
        event = part
        if "error" not in part:
            event = _chat_chunk(part, call_count, translated)
            call_count += len(event["choices"][0]["delta"].get("tool_calls", ()))
        events.append((at_s, event))
    translated.set_stream(events)
    return translated


def _set_error(translated: TranslatedExchange) -> None:
    """Unpacks an error, which streams write as the only item of a list."""
    answer = translated.exchange.answer
    if _is_list(answer):
        for _, error in _answers(answer):
            translated.set_answer(msgspec.json.encode(error))
            return


def _answers(answer: RecordedAnswer) -> Iterator[tuple[float, Json]]:
    """Yields the parts of an answer: one, the events of a stream, or the items of a list."""
    if not _is_list(answer):
        yield from parts_of(answer)
        return
    body = answer.body().removeprefix(BYTE_ORDER_MARK)
    for part in decode_untrusted(body, type=list[Json]):
        yield answer.end_s, part


def _is_list(answer: RecordedAnswer) -> bool:
    return answer.body().removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"[")


def _member(values: Json, name: str) -> Any:
    """Returns a field of a request, which may also be written in snake case."""
    if name in values:
        return values[name]
    return values.get(re.sub("[A-Z]", lambda match: "_" + match[0].lower(), name))


def _messages(body: Json) -> Iterator[Json]:
    """Yields the messages of a chat.

    The ID of a call is the name of its function, as Gemini's results name it. The results have no
    text: they are objects, and each client writes them as text in its own way.
    """
    contents = body["contents"]
    for content in contents if isinstance(contents, list) else [contents]:
        role = "assistant" if content.get("role") == "model" else "user"
        parts: list[Json] = []
        calls: list[Json] = []
        for part in content.get("parts") or ():
            result = _member(part, "functionResponse")
            call = _member(part, "functionCall")
            if result:
                yield {"role": "tool", "tool_call_id": result["name"]}
            elif call:
                calls.append({"id": call["name"], "function": {"name": call["name"]}})
            elif "text" in part:
                parts.append({"type": "text", "text": msgspec.convert(part["text"], str)})
            else:
                parts.append({"type": "file"})
        if parts or calls:
            yield {"role": role, "content": parts, "tool_calls": calls}


def _tools(body: Json) -> Iterator[Json]:
    """Yields the tools of a chat; tools that run on Google's servers are in no script."""
    for tool in body.get("tools") or ():
        for function in _member(tool, "functionDeclarations") or ():
            schema = _member(function, "parametersJsonSchema") or function.get("parameters")
            yield function_tool(function["name"], _lower_types(schema, MAX_SCHEMA_DEPTH))


def _lower_types(schema: Any, max_depth: int) -> Any:
    """Returns a schema with the types of JSON Schema, which Gemini writes in capitals."""
    if max_depth == 0:
        raise ValueError(f"a schema is nested more than {MAX_SCHEMA_DEPTH} levels deep")
    if isinstance(schema, list):
        return [_lower_types(item, max_depth - 1) for item in schema]
    if not isinstance(schema, dict):
        return schema
    lowered: Json = {}
    for name, value in schema.items():
        if name == "type" and isinstance(value, str):
            lowered[name] = value.lower()
        elif name == "type" and isinstance(value, int) and 0 < value < len(SCHEMA_TYPES):
            lowered[name] = SCHEMA_TYPES[value]
        else:
            lowered[name] = _lower_types(value, max_depth - 1)
    return lowered


def _chat_chunk(part: Json, call_count: int, translated: TranslatedExchange) -> Json:
    """Returns a part of a chat's stream. Adds to the losses.

    `call_count`: the number of calls in the parts before.
    """
    chunk = chat_chunk({})
    choice = chunk["choices"][0]
    usage = part.get("usageMetadata") or {}
    if "promptTokenCount" in usage:
        completion = usage.get("candidatesTokenCount", 0) + usage.get("thoughtsTokenCount", 0)
        chunk["usage"] = {
            "prompt_tokens": usage["promptTokenCount"],
            "completion_tokens": completion,
        }
    if (part.get("promptFeedback") or {}).get("blockReason"):
        choice["finish_reason"] = "content_filter"
        translated.lose("promptFeedback")
    for candidate in part.get("candidates") or ():
        if candidate.get("index"):
            translated.lose("candidates after the first")
            continue
        translated.lose_others(candidate, CANDIDATE_FIELDS)
        choice.update({name: candidate[name] for name in candidate if name in REMARKS})
        choice["delta"] = _delta(candidate, call_count, translated)
        reason = candidate.get("finishReason")
        if reason:
            choice["finish_reason"] = FINISHES.get(reason, str(reason))
    return chunk


def _delta(candidate: Json, call_count: int, translated: TranslatedExchange) -> Json:
    """Returns the texts and calls of a candidate. Adds to the losses."""
    delta: Json = {"content": "", "reasoning": "", "tool_calls": []}
    for part in (candidate.get("content") or {}).get("parts") or ():
        translated.lose_others(part, PART_FIELDS)
        call = part.get("functionCall")
        if call:
            translated.lose_others(call, CALL_FIELDS, "functionCall.")
            arguments = json.dumps(call.get("args") or {}, ensure_ascii=False)
            index = call_count + len(delta["tool_calls"])
            delta["tool_calls"].append(call_piece(index, call.get("id"), call["name"], arguments))
        delta["reasoning" if part.get("thought") else "content"] += part.get("text") or ""
    return delta


def _set_embeddings(translated: TranslatedExchange, body: Json, model: str) -> None:
    """Makes an exchange of embeddings; each content is an input."""
    inputs: list[str] = []
    for request in body.get("requests", [body]):
        texts = [part["text"] for part in request["content"]["parts"]]
        inputs.append("\n".join(texts))
    translated.set_request("/v1/embeddings", {"model": model, "input": inputs})
    answer = translated.exchange.answer
    if answer.status >= 400:
        return
    data: list[Json] = []
    for _, part in _answers(answer):
        for vector in part["embeddings"] if "embeddings" in part else [part["embedding"]]:
            data.append({"index": len(data), "embedding": vector["values"]})
    translated.set_answer(msgspec.json.encode({"data": data}))
