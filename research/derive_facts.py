"""Derive facts from recorded exchanges with a real vLLM: what every answer looks like, not what it
says.

    python -m research.derive_facts RECORDING.jsonl > tests/conformance/facts.json

A recording has one exchange per line: name, method, path, request, request_headers, status,
headers, body. The facts keep the request and, of the answer, the status, the media type and the
body's description: the keys in their order, the kind of each value, and the value itself where it
is a word of the protocol or counts tokens of the prompt. Messages, generated texts, ids and times
are left out.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Exchange = Mapping[str, Any]

WORDS = frozenset(
    (
        *(
            "object",
            "type",
            "role",
            "code",
            "param",
            "detail",
            "owned_by",
            "parent",
            "status",
            "success",
        ),
        *("model", "max_model_len", "server_load", "version"),
    )
)
"""Keys whose values are words of the protocol."""

KEPT = ("name", "method", "path", "request", "request_headers", "status")
"""What facts take from an exchange as it is."""

TOKEN_COUNTS = frozenset(("prompt_tokens", "count", "tokens", "token_strs", "prompt"))
"""Keys whose values follow from the tokenizer."""

KEYED_BY_TOKEN = frozenset(("top_logprobs", "prompt_logprobs"))
"""Keys of objects, or of lists of objects, whose own keys are tokens."""

FINISH_BY_CHANCE = frozenset(("stop", "length"))
_ID = re.compile(r"([a-z]+-).+")


def facts(exchange: Exchange) -> dict[str, Any]:
    """The facts of one exchange. Its `headers` have lower-case names."""
    headers = exchange["headers"]
    media_type = headers.get("content-type", "").split(";")[0]
    known = {name: exchange[name] for name in KEPT}
    if "allow" in headers:
        known["allow"] = headers["allow"]
    return {
        **known,
        "media_type": media_type,
        "body": _described_body(media_type, exchange["body"]),
    }


def _described_body(media_type: str, body: str) -> Any:
    if media_type == "text/event-stream":
        return _collapsed(_described_event(event) for event in body.split("\n\n") if event.strip())
    return describe(json.loads(body)) if media_type == "application/json" and body else None


def _described_event(event: str) -> Any:
    """An event by its data; by name and data when it has a name."""
    lines = dict(line.split(": ", 1) for line in event.split("\n"))
    data = lines["data"]
    described = data if data == "[DONE]" else describe(json.loads(data), in_stream=True)
    return {"event": lines["event"], "data": described} if "event" in lines else described


def describe(value: Any, key: str = "", *, in_stream: bool = False) -> Any:
    """`value` as kinds; `key` is the name under which it was found.

    A list is described by its items, runs of the same description told once. In a stream the place
    of a choice is left open, for the choices of one step come in any number.
    """
    if key == "stop_reason":
        return "anything"
    if key == "finish_reason" and value in FINISH_BY_CHANCE:
        return "stop or length"
    if _counts_tokens(key, value):
        return "tokens: " + json.dumps(value)
    if isinstance(value, dict):
        if key in KEYED_BY_TOKEN and "bytes" not in value:
            return {"*": _collapsed(describe(item) for item in value.values())}
        return {name: describe(item, name, in_stream=in_stream) for name, item in value.items()}
    if isinstance(value, list):
        if key == "bytes":  # a token that ends within a character has none
            return "bytes"
        return _collapsed(describe(item, key, in_stream=in_stream) for item in value)
    if key in WORDS or key == "index" and not in_stream:
        return f"{_kind(value)}: {value}" if value is not None else "null"
    if key == "id" and isinstance(value, str) and (known := _ID.fullmatch(value)):
        return f"string: {known[1]}..."
    return _kind(value)


def _counts_tokens(key: str, value: Any) -> bool:
    if (
        key == "tokens"
    ):  # a reply's log probabilities list its tokens by their texts under this name
        return isinstance(value, list) and all(isinstance(item, int) for item in value)
    return key in TOKEN_COUNTS and value is not None


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    return "string" if isinstance(value, str) else "number"


def _collapsed(items: Iterable[Any]) -> list[Any]:
    told: list[Any] = []
    for item in items:
        if not told or json.dumps(told[-1]) != json.dumps(item):
            told.append(item)
    return told


def derive(lines: Iterable[str]) -> list[dict[str, Any]]:
    """The facts of the exchanges in `lines`."""
    return [facts(json.loads(line)) for line in lines if line.strip()]


def main(arguments: Sequence[str]) -> None:
    """Write the facts of the recording that `arguments` name to standard output."""
    with Path(arguments[0]).open(encoding="utf-8") as recording:
        json.dump(derive(recording), sys.stdout, indent=1, ensure_ascii=False)
    print()


if __name__ == "__main__":
    main(sys.argv[1:])
