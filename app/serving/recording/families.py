"""Parsers of requests and answers for each API family (names: docs/scripts.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import msgspec
from msgspec import Struct, field

from app.serving.recording.exchange import Answer, Chunk, bytes_of

Json: TypeAlias = Mapping[str, Any]
BROKEN = (msgspec.MsgspecError, AttributeError, KeyError, TypeError, ValueError)
"""Errors that a malformed body of a family raises."""
FINISHES = {"max_tokens": "length", "max_output_tokens": "length"}
"""Finish reasons of other families, mapped to OpenAI's."""
RESULTS, CALLS = ("function_call_output", "tool_result"), ("function_call", "tool_use", "function")


class ParsedRequest(Struct, frozen=True):
    """The parts of a conversation that rules evaluate.

    `user` is the user's last message. `result` is the text of the tool result that ends the conversation, if
    any; `tool` names its tool. `tools` maps the offered tools to their argument schemas.
    """

    api: str
    model: str
    user: str
    turn: int
    result: str | None
    tool: str
    tools: Json


class ParsedReply(Struct):
    """The first choice of an answer.

    `calls` holds names and arguments (JSON texts), `events` the number of stream events. `moments` holds the
    times of events with a part of the reply; vLLM sends one per token.
    """

    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    finish: str = ""
    events: int = 0
    moments: list[float] = field(default_factory=list)
    blocks: dict[int, list[str]] = field(default_factory=dict)
    """Calls of an Anthropic stream, by block index."""

    def call(self, number: int) -> list[str]:
        """Returns name and arguments of a call; adds empty calls up to `number`."""
        while len(self.calls) <= number:
            self.calls.append(["", ""])
        return self.calls[number]


class Family(NamedTuple):
    """An API family. `turns` names the field with the conversation.

    `take` adds an event to a reply and returns True if the event has a part of the reply.
    """

    api: str
    turns: str
    take: Callable[[ParsedReply, Json], bool]


def parse_request(target: str, body: bytes) -> ParsedRequest | None:
    """Parses a request; None for a request that scripts do not answer."""
    family = FAMILIES.get(target.partition("?")[0])
    try:
        fields = msgspec.json.decode(body, type=dict[str, Any])
        turns = fields.get(family.turns) if family is not None else None
        if isinstance(turns, str):
            turns = [{"role": "user", "content": turns}]
        if family is None or not isinstance(turns, list):
            return None
        return _parsed(family.api, fields, turns)
    except BROKEN:
        return None


def _parsed(api: str, fields: Json, turns: Sequence[Json]) -> ParsedRequest:
    names: dict[str, str] = {}
    result, tool = None, ""
    for turn in turns:
        result = None
        for item in (turn, *_blocks(turn), *(turn.get("tool_calls") or ())):
            found = (item.get(key) for key in ("call_id", "tool_call_id", "tool_use_id", "id"))
            call_id = next((str(each) for each in found if each is not None), "")
            if item.get("role") == "tool" or item.get("type") in RESULTS:
                result, tool = _text(item.get("output", item.get("content"))), names.get(call_id, "")
            elif item.get("type") in CALLS:
                names[call_id] = str(item.get("name") or (item.get("function") or {}).get("name"))
    users = [text for turn in turns if turn.get("role") == "user" and (text := _text(turn.get("content")))]
    return ParsedRequest(
        api,
        str(fields.get("model") or ""),
        users[-1] if users else "",
        len(users) or 1,
        result,
        "" if result is None else tool,
        dict(_tools(fields.get("tools") or ())),
    )


def _blocks(turn: Json) -> Iterable[Json]:
    content = turn.get("content")
    return [each for each in content if isinstance(each, dict)] if isinstance(content, list) else ()


def _text(content: object) -> str:
    """Joins a message's texts with line breaks, as scripts do."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    texts = (part.get("text") for part in parts if isinstance(part, dict))
    return "\n".join(text for text in texts if isinstance(text, str))


def _tools(listed: Iterable[Json]) -> Iterator[tuple[str, Json]]:
    for tool in listed:
        function = tool.get("function") or tool
        schema = function.get("parameters") or function.get("input_schema")
        if isinstance(function.get("name"), str) and isinstance(schema, dict):
            yield function["name"], schema


def parse_reply(api: str, answer: Answer[Chunk]) -> ParsedReply | None:
    """Parses an answer of the family `api`, whole or streamed; None for a body that is not a reply."""
    take = next(family.take for family in FAMILIES.values() if family.api == api)
    reply, decode = ParsedReply(), msgspec.json.Decoder(dict[str, Any]).decode
    try:
        if answer.header("content-type").lower().startswith("text/event-stream"):
            for at_s, data in _events(answer.chunks):
                reply.events += 1
                if take(reply, decode(data)):
                    reply.moments.append(at_s)
        else:
            take(reply, decode(b"".join(bytes_of(chunk.data) for chunk in answer.chunks)))
    except BROKEN:
        return None
    reply.finish = FINISHES.get(reply.finish, reply.finish)
    return reply


def _events(chunks: Sequence[Chunk]) -> Iterator[tuple[float, bytes]]:
    """Yields time and data of each event of a stream, without the final [DONE]."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + bytes_of(chunk.data)).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                yield chunk.at_s, data


def _take_choices(reply: ParsedReply, event: Json) -> bool:
    """Adds a chat, a completion, or a chunk of either."""
    length = 0
    for choice in event.get("choices") or ():
        if choice.get("index"):
            continue
        reply.finish = choice.get("finish_reason") or reply.finish
        part = choice.get("message") or choice.get("delta") or {}
        text = (choice.get("text") or "") + (part.get("content") or "")
        reasoning = part.get("reasoning") or part.get("reasoning_content") or ""
        calls = part.get("tool_calls") or ()
        reply.text += text
        reply.reasoning += reasoning
        for place, call in enumerate(calls):
            index, function = call.get("index"), call.get("function") or {}
            kept = reply.call(place if index is None else min(index, len(reply.calls)))
            kept[0] += function.get("name") or ""
            kept[1] += function.get("arguments") or ""
        length += len(text) + len(reasoning) + len(calls)
    return length > 0


def _take_message(reply: ParsedReply, event: Json) -> bool:
    """Adds an Anthropic message, or an event of its stream."""
    delta, number = event.get("delta") or {}, event.get("index", 0)
    reply.finish = event.get("stop_reason") or delta.get("stop_reason") or reply.finish
    parts = [*(event.get("content") or ()), event.get("content_block") or {}, delta]
    for block in parts:
        if block.get("type") == "tool_use":
            given = block.get("input")
            reply.blocks[number] = call = reply.call(len(reply.calls))
            call[:] = block["name"], msgspec.json.encode(given).decode() if given else ""
    text = "".join(part.get("text") or "" for part in parts)
    reasoning = "".join(part.get("thinking") or "" for part in parts)
    reply.text += text
    reply.reasoning += reasoning
    arguments = delta.get("partial_json") or ""
    if number in reply.blocks:
        reply.blocks[number][1] += arguments
    return bool(text or reasoning or arguments)


def _take_response(reply: ParsedReply, event: Json) -> bool:
    """Adds a response, or an event of its stream; the last event has the whole response."""
    response = event if "output" in event else event.get("response")
    if response:
        reply.text = reply.reasoning = ""
        reply.calls.clear()
        for item in response.get("output") or ():
            text = "".join(
                part.get("text") or "" for part in item.get("content") or item.get("summary") or ()
            )
            if item["type"] == "message":
                reply.text += text
            elif item["type"] == "reasoning":
                reply.reasoning += text
            elif item["type"] == "function_call":
                reply.calls.append([item["name"], item["arguments"]])
        reply.finish = (response.get("incomplete_details") or {}).get("reason") or reply.finish
    return bool(event.get("delta"))


FAMILIES: Mapping[str, Family] = {
    "/v1/chat/completions": Family("chat", "messages", _take_choices),
    "/v1/completions": Family("completions", "prompt", _take_choices),
    "/v1/responses": Family("responses", "input", _take_response),
    "/v1/messages": Family("messages", "messages", _take_message),
}
