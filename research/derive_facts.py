"""Derives facts from recorded exchanges with a real vLLM: the shape of every answer, not its content.

    python -m research.derive_facts RECORDING.jsonl > tests/conformance/facts.json

A recording has one exchange per line: name, method, path, request, request_headers, status,
headers, body. A fact has the request and, of the answer, the status, the media type and a
description of the body: the keys in order, the type of each value, and the value itself where it is
a word of the protocol or counts tokens of the prompt. Messages, generated texts, ids and times are
left out.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

PROTOCOL_KEYS = frozenset(
    "code detail max_model_len model object owned_by param parent role server_load status success"
    " type version".split()
)
"""Keys whose values are words of the protocol."""
COPIED_KEYS = ("name", "method", "path", "request", "request_headers", "status")
"""Keys of an exchange that a fact has unchanged."""
TOKEN_KEYS = frozenset(("prompt_tokens", "count", "tokens", "token_strs", "prompt"))
"""Keys whose values follow from the tokenizer."""
KEYED_BY_TOKEN = frozenset(("top_logprobs", "prompt_logprobs"))
"""Keys of objects, or of lists of objects, whose keys are tokens."""
RANDOM_REASONS = frozenset(("stop", "length"))
GENERATED_ID = re.compile(r"([a-z]+-).+")


def facts(exchange: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts of one exchange, whose `headers` have lower-case names."""
    headers = exchange["headers"]
    media_type = headers.get("content-type", "").split(";")[0]
    described = {name: exchange[name] for name in COPIED_KEYS}
    if "allow" in headers:
        described["allow"] = headers["allow"]
    described["media_type"] = media_type
    described["body"] = describe_body(media_type, exchange["body"])
    return described


def describe_body(media_type: str, body: str) -> Any:
    """Describes a JSON body or a stream of events; None for all others."""
    if media_type == "text/event-stream":
        return collapsed(describe_event(event) for event in body.split("\n\n") if event.strip())
    if media_type == "application/json" and body:
        return describe(json.loads(body))
    return None


def describe_event(event: str) -> Any:
    """Describes an event by its data, and by its name if there is one."""
    lines = dict(line.split(": ", 1) for line in event.split("\n"))
    data = lines["data"]
    if data != "[DONE]":
        data = describe(json.loads(data), in_stream=True)
    if "event" in lines:
        return {"event": lines["event"], "data": data}
    return data


def describe(value: Any, key: str = "", *, in_stream: bool = False) -> Any:
    """Describes a JSON value that was found under `key`.

    Runs of items with the same description are described once. In a stream the index of a choice is
    left open: the choices of one step come in any number.
    """
    if key == "stop_reason":
        return "anything"
    if key == "finish_reason" and value in RANDOM_REASONS:
        return "stop or length"
    if counts_tokens(key, value):
        return "tokens: " + json.dumps(value)
    if isinstance(value, dict):
        if key in KEYED_BY_TOKEN and "bytes" not in value:
            return {"*": collapsed(map(describe, value.values()))}
        return {name: describe(item, name, in_stream=in_stream) for name, item in value.items()}
    if isinstance(value, list):
        if key == "bytes":  # None for a token that ends inside a character
            return "bytes"
        return collapsed(describe(item, key, in_stream=in_stream) for item in value)
    kind = type_name(value)
    if value is not None and (key in PROTOCOL_KEYS or key == "index" and not in_stream):
        return f"{kind}: {value}"
    if key == "id" and isinstance(value, str) and GENERATED_ID.fullmatch(value):
        return GENERATED_ID.sub(r"string: \1...", value)
    return kind


def counts_tokens(key: str, value: Any) -> bool:
    """Returns whether the value follows from the tokenizer."""
    if key == "tokens":  # log probabilities of a reply have a list of texts under this key
        return isinstance(value, list) and all(isinstance(item, int) for item in value)
    return key in TOKEN_KEYS and value is not None


def type_name(value: Any) -> str:
    """Returns the name of a value's type in JSON."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    return "number"


def collapsed(items: Iterable[Any]) -> list[Any]:
    """Returns the items without those that equal the item before them."""
    different: list[Any] = []
    for item in items:
        if not different or json.dumps(different[-1]) != json.dumps(item):
            different.append(item)
    return different


def derive(lines: Iterable[str]) -> list[dict[str, Any]]:
    """Returns the facts of the exchanges in `lines`."""
    return [facts(json.loads(line)) for line in lines if line.strip()]


if __name__ == "__main__":
    with Path(sys.argv[1]).open(encoding="utf-8") as recording:
        json.dump(derive(recording), sys.stdout, indent=1, ensure_ascii=False)
    print()
