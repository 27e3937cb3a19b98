"""The reply in a recorded answer: `reply_of`."""

import json
from typing import Any

from msgspec import Struct

from app.core.base.event_stream import events_of
from app.extensions.recording.exchange import RecordedAnswer, bytes_of, header_of
from config.untrusted import decode_untrusted

INVALID_REPLY = (AttributeError, LookupError, TypeError, ValueError)
"""Errors of a body that is not a reply."""
FINISHES_OF_STATUS = {"incomplete": "length"}
"""Finish reasons by the `status` of the Responses API; `stop` for all others."""
FINISHES_OF_REASON = {"max_tokens": "length", "refusal": "content_filter"}
"""Finish reasons by the `stop_reason` of the Messages API; `stop` for all others."""


class RecordedReply(Struct):
    """The first choice of an answer; `moments` are of events with a part of the reply."""

    text: str = ""
    reasoning: str = ""
    calls: list[list[str]] = []
    """Name and arguments of each tool call."""
    finish: str = ""
    usage: dict[str, int] | None = None
    events: int = 0
    moments: list[float] = []
    """Seconds after the request."""

    def add(self, event: dict[str, Any], at_s: float) -> None:
        """Adds a whole answer, or an event of a stream, of any API."""
        self.events += 1
        self.usage = event.get("usage") or self.usage
        has_part = False
        if event.get("object") == "response":
            has_part = self._add_response(event)
        elif "type" in event and "choices" not in event:
            has_part = self._add_typed_event(event)
        for choice in event.get("choices") or ():
            if choice.get("index"):
                continue
            self.finish = choice.get("finish_reason") or self.finish
            if self._add_choice(choice):
                has_part = True
        if has_part:
            self.moments.append(at_s)

    def _add_choice(self, choice: dict[str, Any]) -> bool:
        """Adds the texts and calls of a choice; returns False if it has none."""
        message = choice.get("message") or choice.get("delta") or {}
        text = (choice.get("text") or "") + (message.get("content") or "")
        reasoning = message.get("reasoning") or message.get("reasoning_content") or ""
        calls = message.get("tool_calls") or ()
        self.text += text
        self.reasoning += reasoning
        for position, call in enumerate(calls):
            function = call.get("function") or {}
            index = call.get("index")
            if index is None:
                index = position
            number = min(index, len(self.calls))
            if number == len(self.calls):
                self.calls.append(["", ""])
            self.calls[number][0] += function.get("name") or ""
            self.calls[number][1] += function.get("arguments") or ""
        return bool(text or reasoning or calls)

    def _add_response(self, response: dict[str, Any]) -> bool:
        """Adds the output of a whole answer of the Responses API."""
        self.finish = FINISHES_OF_STATUS.get(response.get("status", ""), "stop")
        for item in response["output"]:
            for part in (*(item.get("summary") or ()), *(item.get("content") or ())):
                if item["type"] == "reasoning":
                    self.reasoning += part["text"]
                else:
                    self.text += part.get("text") or ""
            if item["type"] == "function_call":
                self.calls.append([item["name"], item["arguments"]])
        return True

    def _add_typed_event(self, event: dict[str, Any]) -> bool:
        """Adds an event with a `type`: of the Responses API, or of the Messages API."""
        kind: str = event["type"]
        if kind in ("response.completed", "response.incomplete"):
            self._add_response(event["response"])
            return False
        if kind.startswith("response."):
            return kind.endswith(".delta")
        if kind == "message":
            for block in event["content"]:
                self._add_block(block)
            self.finish = FINISHES_OF_REASON.get(event.get("stop_reason") or "", "stop")
            return True
        if kind == "content_block_start":
            self._add_block({**event["content_block"], "input": None})
        elif kind == "content_block_delta":
            return self._add_delta(event["delta"])
        elif kind == "message_delta":
            reason = event["delta"].get("stop_reason") or ""
            self.finish = FINISHES_OF_REASON.get(reason, "stop")
        return False

    def _add_block(self, block: dict[str, Any]) -> None:
        """Adds a block of the Messages API; the input of a streamed call follows in deltas."""
        self.text += block.get("text") or ""
        self.reasoning += block.get("thinking") or ""
        if block["type"] == "tool_use":
            arguments = ""
            if block.get("input") is not None:
                arguments = json.dumps(block["input"])
            self.calls.append([block["name"], arguments])

    def _add_delta(self, delta: dict[str, Any]) -> bool:
        self.text += delta.get("text") or ""
        self.reasoning += delta.get("thinking") or ""
        if "partial_json" in delta:
            self.calls[-1][1] += delta["partial_json"]
        return True


def reply_of(answer: RecordedAnswer) -> RecordedReply:
    """Parses an answer, whole or streamed.

    Raises:
        one of INVALID_REPLY: the body is not a reply.
    """
    reply = RecordedReply()
    if not header_of(answer.headers, "content-type").lower().startswith("text/event-stream"):
        reply.add(decode_untrusted(answer.body(), type=dict[str, Any]), answer.end_s)
        return reply
    chunks = ((chunk.at_s, bytes_of(chunk.data)) for chunk in answer.chunks)
    for at_s, event in events_of(chunks):
        if not event.is_done:
            reply.add(decode_untrusted(event.data, type=dict[str, Any]), at_s)
    return reply
