"""Exchanges of Gemini's API as exchanges of OpenAI's: start with `exchange_of_gemini`.

Google's API and Vertex AI have the same requests and answers:
https://ai.google.dev/api/generate-content
"""

import json
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from app.extensions.recording.exchange import (
    Exchange,
    RecordedAnswer,
    RecordedChunk,
    RecordedRequest,
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
CANDIDATE_FIELDS = ("content", "finishReason", "finishMessage", "index", "tokenCount")
"""Fields of a candidate that are carried over, or say the same again."""
PART_FIELDS = ("text", "thought", "thoughtSignature", "functionCall")
CALL_FIELDS = ("name", "args", "id")
SCHEMA_TYPES = ("null", "string", "number", "integer", "boolean", "array", "object")
"""Types of JSON Schema; some clients write their numbers, from 1."""
MAX_SCHEMA_DEPTH = 64
Json: TypeAlias = dict[str, Any]


class TranslatedExchange(Struct):
    """An exchange in the form of OpenAI's API.

    Attributes:
        exchange: The exchange.
        losses: Parts that OpenAI's API does not have.
    """

    exchange: Exchange
    losses: list[str] = []

    def lose(self, loss: str) -> None:
        """Adds a loss once."""
        if loss not in self.losses:
            self.losses.append(loss)


def is_gemini(path: str) -> bool:
    """Returns whether a path is of Gemini's API, with replies or vectors that a script can have."""
    return PATH.fullmatch(path) is not None


def exchange_of_gemini(exchange: Exchange, body: Json) -> TranslatedExchange:
    """Returns an exchange of a path that `is_gemini`, whose request has the JSON `body`.

    Raises:
        AttributeError, LookupError, TypeError, ValueError: it is not an exchange of this API.
    """
    match = PATH.fullmatch(exchange.request.target.partition("?")[0])
    if match is None:
        raise ValueError("the path is not of Gemini's API")
    model, method = match.groups()
    if method in EMBEDDING_METHODS:
        return _embeddings(exchange, body, model)
    request = {"model": model, "messages": list(_messages(body)), "tools": list(_tools(body))}
    translated = TranslatedExchange(_with_request(exchange, "/v1/chat/completions", request))
    answer = exchange.answer
    if answer.status >= 400:
        return _with_error(translated)
    call_count = 0
    chunks: list[RecordedChunk] = []
    for at_s, part in _answers(answer):
        chunk = part
        if "error" not in part:
            chunk = _chat_chunk(part, call_count, translated)
            call_count += len(chunk["choices"][0]["delta"].get("tool_calls", ()))
        chunks.append(RecordedChunk(at_s, f"data: {msgspec.json.encode(chunk).decode()}\n\n"))
    headers = [("content-type", "text/event-stream")]
    translated.exchange = replace(
        translated.exchange, answer=replace(answer, headers=headers, chunks=chunks)
    )
    return translated


def _with_request(exchange: Exchange, path: str, request: Json) -> Exchange:
    body = msgspec.json.encode(request).decode()
    return replace(exchange, request=RecordedRequest("POST", path, (), body))


def _with_error(translated: TranslatedExchange) -> TranslatedExchange:
    """Returns an exchange with an error, which streams write as the only item of a list."""
    if _is_list(translated.exchange.answer):
        for _, error in _answers(translated.exchange.answer):
            return _with_answer(translated, msgspec.json.encode(error))
    return translated


def _with_answer(translated: TranslatedExchange, body: bytes) -> TranslatedExchange:
    answer = translated.exchange.answer
    chunks = [RecordedChunk(answer.end_s, body.decode())]
    translated.exchange = replace(translated.exchange, answer=replace(answer, chunks=chunks))
    return translated


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

    The ID of a call is the name of its function, as Gemini's results name it.
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
                yield {"role": "tool", "tool_call_id": result["name"], "content": ""}
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
            parameters = _lower_types(schema, MAX_SCHEMA_DEPTH)
            yield {
                "type": "function",
                "function": {"name": function["name"], "parameters": parameters},
            }


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
    usage = part.get("usageMetadata") or {}
    choice: Json = {"index": 0, "delta": {}}
    chunk: Json = {"choices": [choice]}
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
        choice["delta"] = _delta(candidate, call_count, translated)
        reason = candidate.get("finishReason")
        if reason:
            choice["finish_reason"] = FINISHES.get(reason, str(reason))
        for name in candidate:
            if name in REMARKS:
                choice[name] = candidate[name]
            elif name not in CANDIDATE_FIELDS:
                translated.lose(name)
    return chunk


def _delta(candidate: Json, call_count: int, translated: TranslatedExchange) -> Json:
    """Returns the texts and calls of a candidate. Adds to the losses."""
    delta: Json = {"content": "", "reasoning": "", "tool_calls": []}
    for part in (candidate.get("content") or {}).get("parts") or ():
        for name in part:
            if name not in PART_FIELDS:
                translated.lose(name)
        call = part.get("functionCall")
        if call:
            for name in call:
                if name not in CALL_FIELDS:
                    translated.lose(f"functionCall.{name}")
            arguments = json.dumps(call.get("args") or {}, ensure_ascii=False)
            function = {"name": call["name"], "arguments": arguments}
            index = call_count + len(delta["tool_calls"])
            delta["tool_calls"].append({"index": index, "id": call.get("id"), "function": function})
        delta["reasoning" if part.get("thought") else "content"] += part.get("text") or ""
    return delta


def _embeddings(exchange: Exchange, body: Json, model: str) -> TranslatedExchange:
    """Returns the exchange of embeddings; each content is an input."""
    requests = body.get("requests", [body])
    inputs: list[str] = []
    for request in requests:
        texts = [part["text"] for part in request["content"]["parts"]]
        inputs.append("\n".join(texts))
    request = {"model": model, "input": inputs}
    translated = TranslatedExchange(_with_request(exchange, "/v1/embeddings", request))
    if exchange.answer.status >= 400:
        return translated
    data: list[Json] = []
    for _, part in _answers(exchange.answer):
        for vector in part["embeddings"] if "embeddings" in part else [part["embedding"]]:
            data.append({"index": len(data), "embedding": vector["values"]})
    return _with_answer(translated, msgspec.json.encode({"data": data}))
