"""The reply in a recorded answer: `reply_of`."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import Struct

from app.core.server.http.event_stream import events_of
from app.extensions.recording.exchange import RecordedAnswer, bytes_of, header_of
from app.extensions.recording.recorded_blocks import BLOCK_TYPES, RecordedBlocks
from app.extensions.recording.reply_fields import (
    ANSWER_FIELDS,
    CHOICE_FIELDS,
    ITEM_FIELDS,
    MESSAGE_FIELDS,
    PART_FIELDS,
    REMARKS,
    STOP_FIELDS,
    add_loss,
    unknown_fields,
)
from config.untrusted import INVALID, decode_untrusted

FINISHES_OF_STATUS = {"incomplete": "length"}
"""Finish reasons by the `status` of the Responses API; `stop` for all others."""
UNFINISHED = ("queued", "in_progress", "cancelled")
"""Statuses of the Responses API without a whole reply."""
FINISHES_OF_REASON = {"max_tokens": "length", "refusal": "content_filter"}
"""Finish reasons by the `stop_reason` of the Messages API; `stop` for all others."""
STOP_REASONS = ("", "end_turn", "tool_use", "stop_sequence")
"""Values of `stop_reason` for the finish reason `stop`."""
CALL_TYPES = ("function_call", "custom_tool_call")
OUTPUT_TYPES = ("message", "reasoning", *CALL_TYPES)
"""Types of output items of the Responses API that a reply can have."""
FINISHES_OF_DETAILS = ("content_filter",)
"""Values of `incomplete_details.reason` of the Responses API that are finish reasons."""
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class RecordedCall(Struct):
    """A tool call. `arguments` is the text that was recorded."""

    name: str = ""
    arguments: str = ""
    id: str = ""


class RecordedReply(Struct):
    """The first choice of an answer; `moments` are of events with a part of the reply."""

    is_stream: bool = False
    text: str = ""
    reasoning: str = ""
    calls: list[RecordedCall] = []
    finish: str = ""
    usage: dict[str, Any] | None = None
    events: int = 0
    moments: list[float] = []
    """Seconds after the request."""
    losses: list[str] = []
    """Parts of the answer that are not in the reply, without repetitions."""
    ignored: list[str] = []
    """Remarks of the provider about the reply, without repetitions."""
    blocks: RecordedBlocks = msgspec.field(default_factory=RecordedBlocks)
    """The content of a message, as it was recorded."""
    _open_calls: dict[int, RecordedCall] = {}
    """The call that each index of a stream stands for."""

    def lose(self, part: str) -> None:
        """Adds a part of the answer that the reply cannot have."""
        add_loss(self.losses, part)

    def lose_unknown(self, fields: dict[str, Any], kept: frozenset[str]) -> None:
        """Adds the fields of a part of the answer that the reply cannot have."""
        for name in unknown_fields(fields, kept):
            if name not in REMARKS:
                self.lose(name)
            elif name not in self.ignored:
                self.ignored.append(name)

    def add(self, event: dict[str, Any], at_s: float) -> None:
        """Adds a whole answer, or an event of a stream, of any API."""
        self.events += 1
        if isinstance(event.get("usage"), dict):
            self.usage = {**(self.usage or {}), **event["usage"]}
        has_part = False
        choices = event.get("choices") or ()
        if event.get("object") == "response":
            has_part = self._add_response(event)
            choices = ()  # a copy of the output for clients of another API
        elif event.get("error"):
            self.lose(f"error in a stream: {_message_of(event['error'])}")
        elif "type" in event and "choices" not in event:
            has_part = self._add_typed_event(event)
        else:
            self.lose_unknown(event, ANSWER_FIELDS)
        for choice in choices:
            if choice.get("index"):
                self.lose("choices after the first")
                continue
            self.finish = choice.get("finish_reason") or self.finish
            self.lose_unknown(choice, CHOICE_FIELDS)
            if self._add_choice(choice):
                has_part = True
        if has_part:
            self.moments.append(at_s)

    def _add_choice(self, choice: dict[str, Any]) -> bool:
        """Adds the texts and calls of a choice; returns False if it has none."""
        message = self._message_in(choice)
        if "content" in message:
            text = self._content(message["content"])
        else:
            text = choice.get("text") or ""
        reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
        calls = message.get("tool_calls") or ()
        self.text += text
        self.reasoning += reasoning
        for position, call in enumerate(calls):
            self._add_call(call, position, is_whole=message is choice.get("message"))
        self.lose_unknown(message, MESSAGE_FIELDS)
        return bool(text or reasoning or calls)

    def _message_in(self, choice: dict[str, Any]) -> dict[str, Any]:
        """Returns the message of a choice, or its piece in a stream; empty for a text.

        Some servers repeat the whole message so far, or the text, beside each piece.
        """
        names = ("delta", "message") if self.is_stream else ("message", "delta")
        for name in names:
            message: dict[str, Any] | None = choice.get(name)
            if message is not None:
                return message
        return {}

    def _content(self, content: Any) -> str:
        """Returns the text of a message, which may be a list of parts."""
        if not isinstance(content, list):
            return content or ""
        texts: list[str] = []
        for part in content:
            if part.get("type") == "thinking":
                thoughts = part.get("thinking") or ""
                self.reasoning += thoughts if isinstance(thoughts, str) else _joined(thoughts)
            elif isinstance(part.get("text"), str):
                texts.append(part["text"])
            else:
                self.lose(f"content part {part.get('type')}")
        return "".join(texts)

    def _add_call(self, call: dict[str, Any], position: int, is_whole: bool) -> None:
        """Adds a call, or a piece of one.

        Some servers send every call with the index 0: another id begins another call.
        """
        function = call.get("function") or {}
        if not function and call.get("custom"):  # a tool whose input is a text
            function = {**call["custom"], "arguments": call["custom"].get("input")}
        name = function.get("name") or ""
        call_id = self._call_id(call.get("id"))
        index = call.get("index")
        if index is None:
            index = position
        open_call = self._open_calls.get(index)
        if open_call is None or is_whole or _begins_another(open_call, name, call_id):
            open_call = RecordedCall()
            self._open_calls[index] = open_call
            self.calls.append(open_call)
        if not (open_call.arguments and name == open_call.name):
            open_call.name += name
        open_call.id = call_id or open_call.id
        arguments = function.get("arguments") or ""
        if not isinstance(arguments, str):  # Ollama and others send an object
            arguments = json.dumps(arguments, ensure_ascii=False)
        open_call.arguments += arguments

    def _call_id(self, call_id: object) -> str:
        """Returns the ID of a call; empty without one, or for one that is not a text."""
        if isinstance(call_id, str):
            return call_id
        if call_id is not None:
            self.lose("id of a tool call that is not a text")
        return ""

    def _add_response(self, response: dict[str, Any]) -> bool:
        """Adds the output of a whole answer of the Responses API."""
        status = response.get("status", "")
        if status in UNFINISHED:
            raise ValueError(f"the status of the response is {status}")
        self.finish = FINISHES_OF_STATUS.get(status, "stop")
        reason = (response.get("incomplete_details") or {}).get("reason")
        if reason in FINISHES_OF_DETAILS:
            self.finish = reason
        if isinstance(response.get("usage"), dict):
            self.usage = response["usage"]
        if response.get("error"):
            self.lose(f"error: {_message_of(response['error'])}")
        for item in response["output"]:
            kind = item["type"]
            if kind not in OUTPUT_TYPES:
                self.lose(f"output item {kind}")
                continue
            self.lose_unknown(item, ITEM_FIELDS)
            for part in (*(item.get("summary") or ()), *(item.get("content") or ())):
                self._add_output_part(kind, part)
            if kind in CALL_TYPES:
                arguments = item["arguments"] if "arguments" in item else item["input"]
                call_id = self._call_id(item.get("call_id"))
                self.calls.append(RecordedCall(item["name"], arguments, call_id))
        return True

    def _add_output_part(self, kind: str, part: dict[str, Any]) -> None:
        self.lose_unknown(part, PART_FIELDS)
        if kind == "reasoning":
            self.reasoning += part["text"]
        elif isinstance(part.get("text"), str):
            self.text += part["text"]
        else:
            self.lose(f"content part {part.get('type')}")

    def _add_typed_event(self, event: dict[str, Any]) -> bool:
        """Adds an event with a `type`: of the Responses API, or of the Messages API."""
        kind: str = event["type"]
        if kind in ("response.completed", "response.incomplete", "response.failed"):
            self._add_response(event["response"])
            return False
        if kind.startswith("response."):
            return kind.endswith(".delta")
        if kind == "error":
            self.lose(f"error in a stream: {_message_of(event)}")
        elif kind == "message":
            for block in event["content"]:
                self._add_block(block)
                self.blocks.add(block)
            self._stop(event)
            return True
        elif kind == "message_start":
            self.usage = (event.get("message") or {}).get("usage")
        elif kind == "content_block_start":
            self._add_block({**event["content_block"], "input": None})
            self.blocks.start(event["content_block"])
        elif kind == "content_block_delta":
            self.blocks.add_delta(event["delta"])
            return self._add_delta(event["delta"])
        elif kind == "message_delta":
            self._stop(event["delta"])
        return False

    def _stop(self, stop: dict[str, Any]) -> None:
        """Sets the finish reason of a message; `stop` is the message or the end of its stream."""
        self.lose_unknown(stop, STOP_FIELDS)
        reason = stop.get("stop_reason") or ""
        self.finish = FINISHES_OF_REASON.get(reason, "stop")
        if reason not in (*FINISHES_OF_REASON, *STOP_REASONS):
            self.lose(f"stop reason {reason}")
        if stop.get("stop_sequence"):
            self.lose("stop sequence")

    def _add_block(self, block: dict[str, Any]) -> None:
        """Adds a block of the Messages API; the input of a streamed call follows in deltas."""
        kind = block["type"]
        if kind not in BLOCK_TYPES:
            # Its deltas are of a call that the model did not ask the client for.
            self._open_calls[0] = RecordedCall()
            return
        self.text += block.get("text") or ""
        self.reasoning += block.get("thinking") or ""
        if kind == "tool_use":
            call = RecordedCall(block["name"], "", self._call_id(block.get("id")))
            if block.get("input") is not None:
                call.arguments = json.dumps(block["input"], ensure_ascii=False)
            self.calls.append(call)
            self._open_calls[0] = call

    def _add_delta(self, delta: dict[str, Any]) -> bool:
        self.text += delta.get("text") or ""
        self.reasoning += delta.get("thinking") or ""
        if "partial_json" in delta:
            self._open_calls[0].arguments += delta["partial_json"]
        return True


def _begins_another(call: RecordedCall, name: str, call_id: str) -> bool:
    """Returns whether a piece with the index of `call` belongs to the next call.

    Some servers repeat the id or the name in every piece.
    """
    if call_id and call.id:
        return call_id != call.id
    return bool(call.arguments and name and name != call.name)


def _joined(parts: list[dict[str, Any]]) -> str:
    return "".join(str(part.get("text") or "") for part in parts)


def _message_of(error: Any) -> str:
    """Returns the message of an error, in any of the forms that streams have."""
    if isinstance(error, dict):
        nested = error.get("error")
        if isinstance(nested, dict):
            return _message_of(nested)
        error = error.get("message") or error.get("code") or error.get("type")
    return " ".join(str(error).split())


def reply_of(answer: RecordedAnswer) -> RecordedReply:
    """Parses an answer, whole or streamed.

    Raises:
        one of INVALID: the body is not a reply.
    """
    reply = RecordedReply(is_stream=is_stream(answer))
    for at_s, part in parts_of(answer):
        reply.add(part, at_s)
    return reply


def response_of(answer: RecordedAnswer) -> dict[str, Any]:
    """Returns the object of the Responses API in an answer, the last one of a stream.

    It is empty if the answer has none.
    """
    response: dict[str, Any] = {}
    try:
        for _, part in parts_of(answer):
            if part.get("object") == "response":
                response = part
            elif isinstance(part.get("response"), dict):
                response = part["response"]
    except INVALID:
        return {}
    return response


def is_stream(answer: RecordedAnswer) -> bool:
    """Returns whether an answer is a stream of events. Some recordings lack its content type."""
    if header_of(answer.headers, "content-type").lower().startswith("text/event-stream"):
        return True
    body = answer.body().removeprefix(BYTE_ORDER_MARK)
    return body.lstrip().startswith((b"data:", b"event:"))


def parts_of(answer: RecordedAnswer) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yields the body of a whole answer, or the events of a stream, with their moments."""
    if not is_stream(answer):
        body = answer.body().removeprefix(BYTE_ORDER_MARK)
        yield answer.end_s, decode_untrusted(body, type=dict[str, Any])
        return
    for at_s, event in events_of(_pieces_of(answer)):
        if event.data.strip() and not event.is_done:
            yield at_s, decode_untrusted(event.data, type=dict[str, Any])


def _pieces_of(answer: RecordedAnswer) -> Iterator[tuple[float, bytes]]:
    """Yields the bytes of a stream without a byte order mark, and with the end of its last line."""
    mark = BYTE_ORDER_MARK
    for chunk in answer.chunks:
        yield chunk.at_s, bytes_of(chunk.data).removeprefix(mark)
        mark = b""
    if answer.chunks and not answer.is_broken:
        yield answer.chunks[-1].at_s, b"\n"  # an editor may have removed the last line end
