"""What a request asked, of whichever family, as the rules of scripts see it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

APIS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
"""Path to the family's name in scripts."""


class Question(Struct, frozen=True):
    """The conversation as far as rules look at it.

    `user` is the last message of a user; `result` the text of the tool result that ends the conversation, if
    one does, and `tool` that tool's name; `tools` are those on offer, with the schemas of their arguments.
    """

    api: str
    model: str
    user: str
    turn: int
    result: str | None
    tool: str
    tools: Mapping[str, Any]


def question_of(target: str, body: bytes) -> Question | None:
    """What was asked; None for what scripts do not answer."""
    api = APIS.get(target.partition("?")[0])
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
    except msgspec.MsgspecError:
        return None
    turns = fields.get({"responses": "input", "completions": "prompt"}.get(api or "", "messages"))
    if isinstance(turns, str):
        turns = [{"role": "user", "content": turns}]
    if api is None or not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        return None
    results = list(_results(turns))
    is_last = bool(results) and results[-1][0] == len(turns) - 1
    users = [text for turn in turns if turn.get("role") == "user" and (text := _text(turn.get("content")))]
    return Question(
        api,
        str(fields.get("model") or ""),
        users[-1] if users else "",
        len(users) or 1,
        results[-1][2] if is_last else None,
        _names_of_calls(turns).get(results[-1][1], "") if is_last else "",
        dict(_tools(fields.get("tools"))),
    )


def _results(turns: Sequence[Mapping[str, Any]]) -> Iterable[tuple[int, str, str]]:
    """Place of a turn with the result of a tool, id of the call, and the text."""
    for place, turn in enumerate(turns):
        if turn.get("role") == "tool":
            yield place, str(turn.get("tool_call_id")), _text(turn.get("content"))
        elif turn.get("type") == "function_call_output":
            yield place, str(turn.get("call_id")), _text(turn.get("output"))
        for block in _blocks(turn):
            if block.get("type") == "tool_result":
                yield place, str(block.get("tool_use_id")), _text(block.get("content"))


def _names_of_calls(turns: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Id of a call to the name of its tool."""
    names: dict[str, str] = {}
    for turn in turns:
        if turn.get("type") == "function_call":
            names[str(turn.get("call_id"))] = str(turn.get("name"))
        for call in turn.get("tool_calls") or ():
            names[str(call.get("id"))] = str((call.get("function") or {}).get("name"))
        for block in _blocks(turn):
            if block.get("type") == "tool_use":
                names[str(block.get("id"))] = str(block.get("name"))
    return names


def _blocks(turn: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    content = turn.get("content")
    return [each for each in content if isinstance(each, dict)] if isinstance(content, list) else ()


def _text(content: object) -> str:
    """The texts of a message, a line each, as scripts join them."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def _tools(listed: object) -> Iterable[tuple[str, Any]]:
    for tool in listed if isinstance(listed, list) else ():
        told = tool.get("function") or tool if isinstance(tool, dict) else {}
        schema = told.get("parameters") or told.get("input_schema")
        if isinstance(told.get("name"), str) and isinstance(schema, dict):
            yield told["name"], schema
