"""Messages of the Anthropic family: one JSON, or named server-sent events (vllm-api.md section 7).

A message is a list of content blocks. Tokens of one part belong to one block: a block begins where another
part does, and blocks are numbered in that order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from app.api.anthropic.block import Block
from app.api.anthropic.errors import error_event
from app.api.response_meta import Head
from app.engine.outputs import EngineOutput, Failed, Finish, Part, Started, Tokens

dumps = msgspec.json.Encoder().encode

TOOL_USE_ID = "toolu_"
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "cache_threshold": "max_tokens"}
"""What an ending is called. One without a name, such as an abort, is told as null."""


class MessageShape(Struct, frozen=True, kw_only=True):
    """What one message tells besides its content."""

    prompt_tokens: int
    prompt_details: bool = False
    """Cached tokens are told apart in usage."""
    transfer: Mapping[str, Any] | None = None
    """`kv_transfer_params` of the answer."""
    encoded_media: Mapping[str, Any] | None = None
    """`ec_transfer_params` of the answer."""


class MessageAnswer:
    """Writes one request's events down; `new_id` draws what names tool uses and signs thoughts."""

    __slots__ = (
        "_block",
        "_cached_tokens",
        "_called",
        "_delta",
        "_failed",
        "_finish",
        "_head",
        "_index",
        "_new_id",
        "_output_tokens",
        "_shape",
        "_tail",
    )

    def __init__(self, head: Head, shape: MessageShape, new_id: Callable[[], str]) -> None:
        self._head = head
        self._shape = shape
        self._new_id = new_id
        self._cached_tokens = 0
        self._output_tokens = 0
        self._finish = Finish("abort")
        self._called = False
        self._failed = False
        self._block: Block | None = None
        self._index = -1
        self._delta = self._tail = b""

    def chunk(self, event: EngineOutput) -> bytes:
        if type(event) is Tokens:
            return self._tokens(event)
        if type(event) is Started:
            self._cached_tokens = event.cached_tokens
            return self._start()
        assert type(event) is Failed
        self._failed = True
        return error_event(event.error)

    def closing(self) -> bytes:
        if self._failed:
            return b""
        empty = b"" if self._block is not None else self._open(Block(None))
        stop_reason, stop_sequence = self._stop()
        ending = {
            "delta": {"stop_reason": stop_reason, "stop_sequence": stop_sequence},
            "usage": self._usage(),
        }
        return empty + self._close() + _event("message_delta", **ending) + _event("message_stop")

    def body(self, events: Iterable[EngineOutput]) -> bytes:
        blocks: list[Block] = []
        for event in events:
            if type(event) is Tokens:
                self._count(event)
                texts = _told(event)
                if _begins(blocks[-1] if blocks else None, event.part, texts):
                    blocks.append(self._new_block(event.part))
                if texts:
                    blocks[-1].texts += texts
            elif type(event) is Started:
                self._cached_tokens = event.cached_tokens
            elif type(event) is Failed:
                raise event.error
        return dumps(self._whole([block.whole() for block in blocks or [Block(None)]]))

    def _whole(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        """What is null is left out."""
        stop_reason, stop_sequence = self._stop()
        message = {
            **self._message(content),
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": self._usage(),
            "kv_transfer_params": self._shape.transfer,
            "ec_transfer_params": self._shape.encoded_media,
        }
        return {name: value for name, value in message.items() if value is not None}

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        """What a message begins with."""
        head = self._head
        return {
            "id": head.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": head.model,
        }

    def _start(self) -> bytes:
        """All tokens of the prompt count as input here: what was cached is told at the end."""
        usage = {"input_tokens": self._shape.prompt_tokens, "output_tokens": 0}
        message = {**self._message([]), "stop_reason": None, "stop_sequence": None, "usage": usage}
        return _event("message_start", message=message)

    def _tokens(self, event: Tokens) -> bytes:
        self._count(event)
        texts = _told(event)
        events: list[bytes] = []
        if _begins(self._block, event.part, texts):
            events += (self._close(), self._open(self._new_block(event.part)))
        for text in texts:
            events += (self._delta, dumps(text), self._tail)
        return b"".join(events)

    def _count(self, event: Tokens) -> None:
        self._output_tokens += len(event.ids)
        if event.finish is not None:
            self._finish = event.finish

    def _new_block(self, part: Part | None) -> Block:
        if part is None:
            return Block(None)
        if part.kind == "reasoning":
            return Block(part, self._new_id())
        self._called = True
        return Block(part, TOOL_USE_ID + self._new_id())

    def _open(self, block: Block) -> bytes:
        self._block = block
        self._index += 1
        self._delta = DELTAS[block.kind]
        self._tail = b'},"index":%d}\n\n' % self._index
        return _event("content_block_start", content_block=block.opening(), index=self._index)

    def _close(self) -> bytes:
        block = self._block
        if block is None:
            return b""
        stop = _event("content_block_stop", index=self._index)
        if block.kind != "reasoning":
            return stop
        signature = {"type": "signature_delta", "signature": block.mark}
        return _event("content_block_delta", delta=signature, index=self._index) + stop

    def _stop(self) -> tuple[str | None, str | None]:
        """Stop reason, and the stop sequence that was met."""
        finish = self._finish
        if finish.reason == "stop":
            if isinstance(finish.stop_reason, str):
                return "stop_sequence", finish.stop_reason
            if self._called:
                return "tool_use", None
        return STOP_REASONS.get(finish.reason), None

    def _usage(self) -> dict[str, int]:
        shape = self._shape
        if not shape.prompt_details:
            return {"input_tokens": shape.prompt_tokens, "output_tokens": self._output_tokens}
        return {
            "input_tokens": shape.prompt_tokens - self._cached_tokens,
            "output_tokens": self._output_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": self._cached_tokens,
        }


def _begins(block: Block | None, part: Part | None, texts: Sequence[str]) -> bool:
    """True when tokens of `part` open a new block after `block`; a call begins with its markup already."""
    if block is not None and block.part == part:
        return False
    return bool(texts) or (part is not None and part.kind == "call")


def _told(event: Tokens) -> Sequence[str]:
    """The texts that say something; none of an image, which no block of a reply can hold."""
    if event.part is not None and event.part.kind == "image":
        return ()
    return [text for text in event.texts if text]


def _event(kind: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), dumps({"type": kind, **fields}))


DELTAS = {
    kind: b'event: content_block_delta\ndata: {"type":"content_block_delta","delta":{"type":%b:' % field
    for kind, field in {
        "text": b'"text_delta","text"',
        "reasoning": b'"thinking_delta","thinking"',
        "call": b'"input_json_delta","partial_json"',
    }.items()
}
"""What the event of a piece of text begins with, up to the text."""
