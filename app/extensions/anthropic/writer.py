"""Messages as Anthropic's API has them: one JSON body, or named server-sent events.

A message is a list of content blocks. Tokens of one part belong to one block; a new part starts a
new block, and blocks are numbered in that order.
"""

from collections.abc import Callable, Mapping

from msgspec import Raw

from app.core.api.choice_state import Segment
from app.core.api.identity import ResponseMeta
from app.core.engine.outputs import Part, Started, Tokens
from app.core.protocol.coercion import JsonObject
from app.core.protocol.common import GAP, HOLE, encode
from app.core.server.http.response import DONE
from app.extensions.anthropic.errors import error_event
from app.extensions.anthropic.rules import MessageRules
from app.extensions.anthropic.tool_input import ReadInput, input_of, input_or_empty
from app.shared.block_writer import BlockWriter, named_event

TOOL_USE_ID = "chatcmpl-tool-"
"""Prefix of vLLM's own ids, for the chat behind a message."""
STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "cache_threshold": "max_tokens",
    "content_filter": "refusal",
}
"""Stop reasons by finish reason; other finish reasons, such as an abort, have null."""
DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
"""Type of a delta and its field, by the kind of its segment."""


class MessageWriter(BlockWriter):
    """Writes the answer to one request for a message."""

    on_end: Callable[[list[JsonObject]], None] | None = None
    """Receives the blocks of the complete message."""

    def __init__(
        self,
        meta: ResponseMeta,
        prompt_tokens: int,
        prompt_details: bool,
        new_id: Callable[[], str],
        rules: MessageRules,
    ) -> None:
        """With `prompt_details` the usage counts cached tokens separately."""
        super().__init__(new_id)
        self._meta = meta
        self._prompt_tokens = prompt_tokens
        self._prompt_details = prompt_details
        self._has_anthropic_types = rules.has_anthropic_types
        self._end = DONE if rules.ends_with_done else b""
        self._around_text = (b"", b"")
        """Bytes before and after a piece of the open block's text."""

    def _render_start(self, output: Started) -> bytes:
        """Counts all tokens of the prompt as input; the last usage has the cached ones."""
        self.record_start(output)
        prompt_tokens, _ = self.usage.override(self._prompt_tokens, 0)
        message = self._message(
            content=[],
            stop={"stop_reason": None, "stop_sequence": None},
            usage={"input_tokens": prompt_tokens, "output_tokens": 0},
        )
        return message_event("message_start", message=message)

    def _message(
        self, content: list[JsonObject], stop: Mapping[str, object], usage: JsonObject
    ) -> JsonObject:
        return {
            "id": self._meta.id,
            "type": "message",
            "role": "assistant",
            "content": content,
            "model": self._meta.model,
            **stop,
            "usage": usage,
        }

    def _render_block_start(self, segment: Segment) -> bytes:
        delta_type, field = DELTAS[segment.kind]
        prefix, suffix = self._delta(delta_type, field, HOLE).split(GAP)
        self._around_text = (prefix, suffix)
        block = _block(segment, "")
        block.pop("signature", None)
        return message_event("content_block_start", content_block=block, index=self._index)

    def _render_texts(self, segment: Segment, output: Tokens) -> bytes:
        prefix, suffix = self._around_text
        return b"".join(
            [b"%b%b%b" % (prefix, encode(text), suffix) for text in output.texts if text]
        )

    def _render_block_end(self, segment: Segment) -> bytes:
        stop = message_event("content_block_stop", index=self._index)
        if segment.kind != "reasoning":
            return stop
        return self._delta("signature_delta", "signature", segment.id) + stop

    def _delta(self, delta_type: str, field: str, value: str | Raw) -> bytes:
        delta = {"type": delta_type, field: value}
        return message_event("content_block_delta", delta=delta, index=self._index)

    def _segment_id(self, part: Part | None) -> str:
        if part is None:
            return ""
        if part.kind == "reasoning":
            return self._new_id()
        return part.id or TOOL_USE_ID + self._new_id()

    def _render_failure(self, error: Exception) -> bytes:
        event = error_event(error, has_anthropic_types=self._has_anthropic_types)
        if self._has_anthropic_types:
            return self._close_block() + event
        return event

    def closing(self) -> bytes:
        """Returns the end of the stream."""
        if self.has_failed:
            return b""
        self._finish_blocks()
        end = message_event("message_delta", delta=self._stop(), usage=self._message_usage())
        return b"".join((self._close_block(), end, message_event("message_stop"), self._end))

    def whole(self) -> JsonObject:
        """Returns the whole message, once all outputs are collected.

        Raises:
            ApiError: Status 400, the arguments of a call are not a JSON object.
        """
        blocks = self._finish_blocks(input_of) or [{"type": "text", "text": ""}]
        stop = {name: value for name, value in self._stop().items() if value is not None}
        message = self._message(blocks, stop, self._message_usage())
        if self.transfer is not None:
            message["kv_transfer_params"] = self.transfer
        if self.encoded_media is not None:
            message["ec_transfer_params"] = self.encoded_media
        return message

    def _finish_blocks(self, read_input: ReadInput = input_or_empty) -> list[JsonObject]:
        """Passes the blocks of the complete message to `on_end` and returns them."""
        segments = self.choices[0].segments
        blocks = [_block(segment, segment.text, read_input) for segment in segments]
        if self.on_end is not None:
            self.on_end(blocks)
        return blocks

    def _stop(self) -> Mapping[str, str | None]:
        choice = self.choices[0]
        finish = choice.finish
        if finish.reason == "stop" and isinstance(finish.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": finish.stop_reason}
        reason = STOP_REASONS.get(finish.reason)
        if finish.reason == "stop" and choice.called:
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": None}

    def _message_usage(self) -> JsonObject:
        """Returns the token counts.

        `input_tokens` excludes cached tokens where the usage counts them separately.
        """
        prompt_tokens, tokens = self.usage.override(self._prompt_tokens, self.choices[0].tokens)
        if not self._prompt_details:
            return {"input_tokens": prompt_tokens, "output_tokens": tokens}
        cached = self.reported_cached_tokens
        created = self.reported_created_tokens
        return {
            "input_tokens": max(0, prompt_tokens - cached - created),
            "output_tokens": tokens,
            "cache_creation_input_tokens": created,
            "cache_read_input_tokens": cached,
        }


def _block(segment: Segment, text: str, read_input: ReadInput = input_or_empty) -> JsonObject:
    if segment.part is None:
        return {"type": "text", "text": text}
    if segment.part.kind == "reasoning":
        return {"type": "thinking", "thinking": text, "signature": segment.id}
    block: JsonObject = {"type": "tool_use", "id": segment.id, "name": segment.part.name}
    arguments = read_input(text)
    if arguments is not None:
        block["input"] = arguments
    return block


def message_event(name: str, **fields: object) -> bytes:
    """Returns a server-sent event of a message."""
    return named_event(name, {"type": name, **fields})
