"""The conversation in a request of each API: its messages, and how many replies it has so far."""

from collections.abc import Sequence
from typing import Any, TypeAlias

from msgspec import Struct, convert

from config.untrusted import INVALID

Json: TypeAlias = dict[str, Any]
"""A decoded JSON object."""
FAMILIES = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
}
"""APIs of conversations, by path."""
CALL_TYPES = ("function_call", "custom_tool_call")
RESULT_TYPES = ("function_call_output", "custom_tool_call_output")


class ConversationPosition(Struct, frozen=True):
    """The position of a request in the conversation of an agent.

    Attributes:
        reply_count: Number of replies of the model so far; calls one after the other count once.
        has_tools: The request offers tools, unlike a request for a title or a summary.
        is_stream: The answer is a stream.
    """

    reply_count: int
    has_tools: bool
    is_stream: bool


def position_of(path: str, body: Json) -> ConversationPosition | None:
    """Returns the position of a request; None if it is not a request of `FAMILIES`."""
    api = FAMILIES.get(path)
    if api is None:
        return None
    try:
        roles = [turn.get("role") for turn in turns_of(api, body)]
    except INVALID:
        return None
    return ConversationPosition(
        reply_count=_reply_count(roles),
        has_tools=bool(body.get("tools")),
        is_stream=body.get("stream") is True,
    )


def _reply_count(roles: Sequence[object]) -> int:
    """Counts the groups of neighboring messages of the model."""
    count = 0
    previous: object = None
    for role in roles:
        if role == "assistant" and previous != "assistant":
            count += 1
        previous = role
    return count


def turns_of(api: str, body: Json) -> list[Json]:
    """Returns the messages of a request; results of tools have the role `tool`.

    Raises:
        AttributeError, KeyError, TypeError, ValueError: the body is not a request of this API.
    """
    if api == "completions":
        prompt = body["prompt"]
        if isinstance(prompt, list) and len(prompt) == 1:  # as LangChain sends it
            prompt = prompt[0]
        return [{"role": "user", "content": convert(prompt, str)}]
    if api == "responses":
        return _turns_of_input(body["input"])
    turns: list[Json] = []
    for message in body.get("messages") or ():
        if api == "messages" and isinstance(message["content"], list):
            turns += _turns_of_blocks(message["role"], message["content"])
        else:
            turns.append(message)
    return turns


def _turns_of_blocks(role: str, blocks: list[Json]) -> list[Json]:
    """Returns the messages for one message of the Messages API."""
    turns: list[Json] = []
    texts: list[Json] = []
    calls: list[Json] = []
    for block in blocks:
        if block["type"] == "tool_result":
            turns += _turns_of_result(block)
        elif block["type"] == "tool_use":
            calls.append({"id": block["id"], "function": {"name": block["name"]}})
        elif block["type"] in ("text", "image"):
            texts.append(block)
    if texts or calls:
        turns.append({"role": role, "content": texts, "tool_calls": calls})
    return turns


def _turns_of_result(block: Json) -> list[Json]:
    """Returns the messages for a result of a tool; vLLM gives its images to the user."""
    content = block.get("content") or ""
    turns: list[Json] = [{"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}]
    if isinstance(content, list):
        images = [part for part in content if part.get("type") == "image"]
        if images:
            turns[0]["content"] = [part for part in content if part.get("type") != "image"]
            turns.append({"role": "user", "content": images})
    return turns


def _turns_of_input(content: str | list[Json]) -> list[Json]:
    """Returns the messages for the input of the Responses API."""
    if isinstance(content, str):
        return [{"role": "user", "content": content}]
    turns: list[Json] = []
    for item in content:
        kind = item.get("type", "message")
        if kind == "message":
            turns.append(item)
        elif kind in CALL_TYPES:
            call = {"id": item["call_id"], "function": {"name": item["name"]}}
            turns.append({"role": "assistant", "tool_calls": [call]})
        elif kind in RESULT_TYPES:
            output = item["output"]
            turns.append({"role": "tool", "tool_call_id": item["call_id"], "content": output})
    return turns
