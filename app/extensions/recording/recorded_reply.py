"""The reply in a recorded answer of a chat or completion: `reply_of`."""

from typing import Any

import msgspec
from msgspec import Struct

from app.extensions.recording.exchange import RecordedAnswer, bytes_of, header_of

INVALID_REPLY = (AttributeError, KeyError, TypeError, ValueError)
"""Errors of a body that is not a reply."""


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
        """Adds a whole answer, or an event of a stream."""
        self.events += 1
        self.usage = event.get("usage") or self.usage
        has_part = False
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


def reply_of(answer: RecordedAnswer) -> RecordedReply:
    """Parses an answer, whole or streamed.

    Raises:
        one of INVALID_REPLY: the body is not a reply.
    """
    reply = RecordedReply()
    decode = msgspec.json.Decoder(dict[str, Any]).decode
    if not header_of(answer.headers, "content-type").lower().startswith("text/event-stream"):
        reply.add(decode(answer.body()), answer.end_s)
        return reply
    incomplete = b""
    for chunk in answer.chunks:
        *lines, incomplete = (incomplete + bytes_of(chunk.data)).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                data = line[5:].strip()
                if data != b"[DONE]":
                    reply.add(decode(data), chunk.at_s)
    return reply
