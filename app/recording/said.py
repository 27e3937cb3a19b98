"""What an answer said, of whichever family, whole or streamed: text, thoughts, calls, how it ended."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from msgspec import Struct, field

from app.recording.exchange import Answer, Chunk, bytes_of


class Said(Struct):
    """Of the first choice. `calls`: names and arguments (JSON texts); `events`: how many came in a stream."""

    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = field(default_factory=list)
    finish: str = ""
    events: int = 0

    def call(self, number: int) -> list[str]:
        """The name and the arguments of a call, empty at first."""
        while len(self.calls) <= number:
            self.calls.append(["", ""])
        return self.calls[number]


class _Function(Struct, frozen=True):
    name: str | None = None
    arguments: str | None = None


class _Call(Struct):
    function: _Function = _Function()
    index: int | None = None


class _Message(Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(Struct):
    index: int = 0
    message: _Message | None = None
    delta: _Message | None = None
    text: str | None = None
    finish_reason: str | None = None


class _Choices(Struct):
    """A chat, a completion, or a chunk of one."""

    choices: list[_Choice] = []


class _Block(Struct):
    """A part of one of Anthropic's messages, or what is added to one."""

    type: str = ""
    text: str = ""
    thinking: str = ""
    name: str = ""
    input: dict[str, object] | None = None
    partial_json: str = ""
    stop_reason: str | None = None


class _AnthropicEvent(Struct):
    """A message, or an event of one."""

    content: list[_Block] = []
    stop_reason: str | None = None
    index: int = 0
    content_block: _Block | None = None
    delta: _Block | None = None


class _Part(Struct):
    text: str = ""


class _Item(Struct):
    """A part of the output of a response."""

    type: str = ""
    content: list[_Part] | None = None
    summary: list[_Part] | None = None
    name: str = ""
    arguments: str = ""


class _Reasons(Struct):
    reason: str = ""


class _Response(Struct):
    output: list[_Item] = []
    incomplete_details: _Reasons | None = None


class _ResponseEvent(Struct):
    response: _Response | None = None
    delta: str = ""


FINISHES = {"max_tokens": "length", "max_output_tokens": "length"}
"""Other families' words for how a reply ends."""


def said_in(api: str, answer: Answer[Chunk]) -> Said | None:
    """What an answer of the family `api` said (names: docs/scripts.md); None when that cannot be read."""
    body = b"".join(bytes_of(chunk.data) for chunk in answer.chunks)
    streamed = answer.header("content-type").lower().startswith("text/event-stream")
    documents = list(_events(body.splitlines())) if streamed else [body]
    said = Said(events=len(documents) if streamed else 0)
    try:
        if api == "messages":
            _take_message(said, documents)
        elif api == "responses":
            _take_response(said, documents, streamed)
        else:
            _take_choices(said, documents)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    said.finish = FINISHES.get(said.finish, said.finish)
    return said


def moments_of(api: str, answer: Answer[Chunk]) -> list[float]:
    """When each event of a stream came that says a piece of the reply; one token each, as vLLM sends them."""
    moments, rest = list[float](), b""
    for chunk in answer.chunks:
        *lines, rest = (rest + bytes_of(chunk.data)).split(b"\n")
        moments += [chunk.at_s for event in _events(lines) if _says(api, event)]
    return moments


def _says(api: str, event: bytes) -> bool:
    """Whether an event, which `said_in` has read, adds to the reply."""
    if api == "responses":
        return bool(msgspec.json.decode(event, type=_ResponseEvent).delta)
    said = Said()
    if api == "messages":
        _take_message(said, [event])
        delta = msgspec.json.decode(event, type=_AnthropicEvent).delta
        return bool(said.text or said.reasoning or delta and delta.partial_json)
    _take_choices(said, [event])
    return bool(said.text or said.reasoning or said.calls)


def _events(lines: Iterable[bytes]) -> Iterable[bytes]:
    """The data of a stream's events, which are all JSON but for the end."""
    for line in lines:
        if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
            yield data


def _take_choices(said: Said, documents: Sequence[bytes]) -> None:
    for document in documents:
        for choice in msgspec.json.decode(document, type=_Choices).choices:
            if choice.index == 0:
                said.finish = choice.finish_reason or said.finish
                said.text += choice.text or ""
                _take_part(said, choice.message or choice.delta or _Message())


def _take_part(said: Said, part: _Message) -> None:
    said.text += part.content or ""
    said.reasoning += part.reasoning or part.reasoning_content or ""
    for place, call in enumerate(part.tool_calls or ()):
        kept = said.call(place if call.index is None else min(call.index, len(said.calls)))
        kept[0] += call.function.name or ""
        kept[1] += call.function.arguments or ""


def _take_message(said: Said, documents: Sequence[bytes]) -> None:
    blocks: dict[int, list[str]] = {}
    """Calls of a stream, by the number of their block."""
    for document in documents:
        event = msgspec.json.decode(document, type=_AnthropicEvent)
        said.finish = event.stop_reason or (event.delta and event.delta.stop_reason) or said.finish
        for block in (*event.content, *([event.content_block] if event.content_block else [])):
            if block.type == "tool_use":
                call = blocks[event.index] = said.call(len(said.calls))
                call[0] = block.name
                call[1] = msgspec.json.encode(block.input).decode() if block.input else ""
            said.text += block.text
            said.reasoning += block.thinking
        if event.delta is not None:
            said.text += event.delta.text
            said.reasoning += event.delta.thinking
            if event.index in blocks:
                blocks[event.index][1] += event.delta.partial_json


def _take_response(said: Said, documents: Sequence[bytes], streamed: bool) -> None:
    """The last event of a stream has all of it."""
    whole: _Response | None = None
    for document in documents:
        if streamed:
            whole = msgspec.json.decode(document, type=_ResponseEvent).response or whole
        else:
            whole = msgspec.json.decode(document, type=_Response)
    for item in whole.output if whole is not None else ():
        text = "".join(part.text for part in item.content or item.summary or ())
        if item.type == "message":
            said.text += text
        elif item.type == "reasoning":
            said.reasoning += text
        elif item.type == "function_call":
            said.calls.append([item.name, item.arguments])
    if whole is not None and whole.incomplete_details is not None:
        said.finish = whole.incomplete_details.reason
