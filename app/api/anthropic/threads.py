"""Conversations that the beta of Anthropic's SDK leaves to the server (`thread`): only new turns are sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress

from cachetools import LRUCache
from msgspec import Struct

from app.api.anthropic.writer import MessageResponseOptions, MessageWriter, ThreadNotFound
from app.api.identity import ResponseMeta
from app.api.writer import Segment
from app.engine.outputs import EngineOutput, Tokens
from app.protocol.anthropic import Block, MessageParam, MessagesRequest, ThreadContinue, ToolParam
from app.protocol.anthropic_response import MessageResponse

MOST_BYTES = 64 << 20
LEAST_BYTES = 1 << 12
"""Bytes that a conversation counts as at the least."""


class Thread(Struct, frozen=True):
    """A conversation with its last reply, and what was asked beside it; `size` in bytes of its requests."""

    messages: Sequence[MessageParam]
    system: str | list[Block] | None
    tools: list[ToolParam] | None
    size: int


class ThreadStore:
    """Keeps conversations by the id of their last reply; which was touched longest ago is forgotten first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self.limit_bytes = most_bytes
        self._kept: LRUCache[str, Thread] = LRUCache(
            most_bytes, lambda kept: min(max(kept.size, LEAST_BYTES), most_bytes)
        )

    @property
    def size_bytes(self) -> int:
        """Bytes that all conversations count as."""
        return int(self._kept.currsize)

    def resume(self, asked: MessagesRequest) -> int:
        """Puts the conversation so far before the turns of `asked`, and returns its bytes.

        System and tools are those of its beginning. ApiError 404 when it is not here (any more).
        """
        if not isinstance(asked.thread, ThreadContinue):
            return 0
        before = self._kept.get(asked.thread.previous_message_id)
        if before is None:
            raise ThreadNotFound(asked.thread.previous_message_id)
        asked.messages = [*before.messages, *asked.messages]
        asked.system, asked.tools = before.system, before.tools
        return before.size

    def keep(self, message_id: str, asked: MessagesRequest, size: int, reply: Sequence[Block]) -> None:
        turns = [*asked.messages, MessageParam(role="assistant", content=list(reply))]
        self._kept[message_id] = Thread(turns, asked.system, asked.tools, size)


class ThreadWriter(MessageWriter):
    """Writes a message whose blocks `keep` gets when it is complete, with the bytes of their texts."""

    def __init__(
        self,
        meta: ResponseMeta,
        options: MessageResponseOptions,
        new_id: Callable[[], str],
        keep: Callable[[Sequence[Block], int], None],
    ) -> None:
        super().__init__(meta, options, new_id)
        self._keep_blocks = keep

    def chunk(self, output: EngineOutput) -> bytes:
        events = super().chunk(output)
        segment = self._segment
        if type(output) is Tokens and segment is not None and segment.part == output.part:
            segment.texts += output.texts
        return events

    def closing(self) -> bytes:
        if not self.has_failed:
            self._keep_reply()
        return super().closing()

    def whole(self) -> MessageResponse:
        self._keep_reply()
        return super().whole()

    def _keep_reply(self) -> None:
        segments = self.choices[0].segments
        self._keep_blocks([_block(segment) for segment in segments], sum(len(each.text) for each in segments))


def _block(segment: Segment) -> Block:
    if segment.kind == "reasoning":
        return Block(type="thinking", thinking=segment.text, signature=segment.id)
    if segment.part is None:
        return Block(type="text", text=segment.text)
    arguments: object = None
    with suppress(ValueError):
        arguments = json.loads(segment.text)
    known = arguments if isinstance(arguments, dict) else {}
    return Block(type="tool_use", id=segment.id, name=segment.part.name, input=known)
