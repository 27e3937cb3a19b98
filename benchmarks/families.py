"""Requests of every family of routes, each with a message that no request before it had."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from typing import Any

from benchmarks.connections import PATH, request

VARIANTS = 50
"""Number of different tools, and of different schemas."""
LOGPROBS_TOKENS = 16
RESPONSES_TOKENS = 16
REPLY = "A scripted reply of a few words."
"""Reply of the only rule in `SCRIPT` and `AIMOCK_FIXTURES`."""
SCRIPT = f"rules:\n- when: {{message: {{contains: number}}}}\n  then: {{text: {REPLY}}}\n"
AIMOCK_FIXTURES = {
    "fixtures": [{"match": {"userMessage": "number"}, "response": {"content": REPLY}}]
}

Body = Mapping[str, Any]
BodyOf = Callable[[int, str], Body]
"""Takes the number and the text of a request."""
REPLY_TOKENS = 5
"""Longest reply of a family without a length of its own."""
FORM_TOKENS = 200
"""Longest call or JSON reply, which ends by itself."""
CHARACTERS_PER_TOKEN = 2
"""Average of the words that lengthen a call or JSON reply."""


def requests_of(family: str) -> Iterator[bytes]:
    """Yields requests of `family` without an end."""
    path, body_of = FAMILIES[family]
    for number in count():
        body = {"model": "m", **body_of(number, f"What is new about the number {number} today?")}
        yield request(path, json.dumps(body, separators=(",", ":")).encode())


def streams_of(family: str, tokens: int) -> Iterator[bytes]:
    """Yields requests of `family` for streams of about `tokens` tokens, without an end.

    Tool calls, JSON and replies of Messages end by themselves, before their limits.
    """
    path, body_of = FAMILIES[family]
    limit_field = "max_output_tokens" if family == "Responses" else "max_tokens"
    limit = tokens
    if family == "Messages":  # replies have half of their limit on average
        limit = 2 * tokens
    elif family in LENGTHEN:
        limit = 2 * tokens + FORM_TOKENS
    fields = {"model": "m", "stream": True, "ignore_eos": True, limit_field: limit}
    for number in count():
        body = {**body_of(number, f"What is new about the number {number} today?"), **fields}
        if family in LENGTHEN:
            LENGTHEN[family](body, tokens * CHARACTERS_PER_TOKEN)
        yield request(path, json.dumps(body, separators=(",", ":")).encode())


def _chat(text: str, max_tokens: int = REPLY_TOKENS, **fields: Any) -> Body:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": max_tokens, **fields}


def plain(number: int, text: str) -> Body:
    """A short chat."""
    return _chat(text)


def stop(number: int, text: str) -> Body:
    """A chat that ends at one of two texts."""
    return _chat(text, stop=["\n\n", "END"])


def logprobs(number: int, text: str) -> Body:
    """A chat with the log probabilities of its tokens."""
    return _chat(text, LOGPROBS_TOKENS, logprobs=True)


def tool(number: int, text: str) -> Body:
    """A chat that has to call one of fifty functions, with three parameters."""
    function = {
        "name": f"get_weather_{number % VARIANTS}",
        "description": "Returns the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Name of the city."},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer"},
            },
            "required": ["city", "unit"],
        },
    }
    tools = [{"type": "function", "function": function}]
    return _chat(text, FORM_TOKENS, tools=tools, tool_choice="required")


def listing_tool(number: int, text: str) -> Body:
    """A chat that has to call a function with a list, a date and a bounded number."""
    parameters = {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "day": {"type": "string", "format": "date"},
            "guests": {"type": "integer", "minimum": 1, "maximum": 9},
            "wishes": {"type": "array", "items": {"type": "string"}},
        },
        "required": ["city", "day", "guests", "wishes"],
    }
    function = {"name": f"book_table_{number % VARIANTS}", "parameters": parameters}
    tools = [{"type": "function", "function": function}]
    return _chat(text, FORM_TOKENS, tools=tools, tool_choice="required")


def lengthen_call(body: Body, characters: int) -> None:
    """Asks in a body of `tool` for a city whose name has at least so many characters."""
    properties = body["tools"][0]["function"]["parameters"]["properties"]
    properties["city"]["minLength"] = characters


def schema(number: int, text: str) -> Body:
    """A chat whose reply follows one of fifty schemas."""
    fields = {
        "type": "object",
        "properties": {
            f"name_{number % VARIANTS}": {"type": "string"},
            "age": {"type": "integer"},
            "is_member": {"type": "boolean"},
        },
        "required": [f"name_{number % VARIANTS}", "age", "is_member"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": fields}}
    return _chat(text, FORM_TOKENS, response_format=form)


def lengthen_json(body: Body, characters: int) -> None:
    """Asks in a body of `schema` for a name that has at least so many characters."""
    properties = body["response_format"]["json_schema"]["schema"]["properties"]
    name = next(iter(properties))
    properties[name]["minLength"] = characters


def response(number: int, text: str) -> Body:
    """A request of the Responses API."""
    return {"input": text, "max_output_tokens": RESPONSES_TOKENS}


def tokenize(number: int, text: str) -> Body:
    """A text to tokenize."""
    return {"prompt": text}


def embedding(number: int, text: str) -> Body:
    """A text to embed."""
    return {"input": text}


FAMILIES: Mapping[str, tuple[str, BodyOf]] = {
    "plain": (PATH, plain),
    "stop": (PATH, stop),
    "logprobs": (PATH, logprobs),
    "required tool": (PATH, tool),
    "tool with a list": (PATH, listing_tool),
    "JSON schema": (PATH, schema),
    "Responses": ("/v1/responses", response),
    "Messages": ("/v1/messages", plain),
    "tokenize": ("/tokenize", tokenize),
    "embeddings": ("/v1/embeddings", embedding),
    "scripted reply": (PATH, plain),
}
"""Path and body of the families' requests."""
LENGTHEN: Mapping[str, Callable[[Body, int], None]] = {
    "required tool": lengthen_call,
    "JSON schema": lengthen_json,
}
"""Families whose replies are as long as their schemas demand."""
