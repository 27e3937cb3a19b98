"""Messages whose content is that of a recorded reply, where a rule of a script has its blocks."""

from app.core.engine.outputs import Tokens
from app.core.protocol.coercion import JsonObject
from app.core.protocol.common import Blocks
from app.extensions.anthropic.tool_input import ReadInput, input_or_empty
from app.extensions.anthropic.writer import MessageWriter, message_event

DELTAS_OF_BLOCKS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "compaction": ("compaction_delta", "content"),
}
"""Type of a delta and its field, which is also that of the block, by the type of the block."""


class RecordedMessageWriter(MessageWriter):
    """Writes the answer to one request; the content is that of a rule with `blocks`, if any.

    The engine generates the texts of the blocks, which set the pace. Results of tools that
    the provider runs have no text: they are sent when the text before them is complete.
    """

    _position = 0
    """Number of blocks that have been sent."""
    _sent = 0
    """Characters of the open block that have been sent."""
    _is_block_open = False

    def _render_tokens(self, output: Tokens) -> bytes:
        if self.blocks is None:
            return super()._render_tokens(output)
        self.choices[0].count(output)
        return b"".join([self._advance(self.blocks, len(text)) for text in output.texts])

    def _close_block(self) -> bytes:
        if self.blocks is None:
            return super()._close_block()
        events = b""
        if not self._is_cut_off and not self.has_failed:
            events = self._advance(self.blocks, sum(len(text) for _, text in self.blocks))
        if self._is_block_open:
            self._is_block_open = False
            events += message_event("content_block_stop", index=self._position)
        return events

    @property
    def _is_cut_off(self) -> bool:
        """True if a limit or a stop string of the request has ended the reply before its end."""
        finish = self.choices[0].finish
        return finish.reason in ("length", "abort") or isinstance(finish.stop_reason, str)

    def _advance(self, blocks: Blocks, size: int) -> bytes:
        """Returns the events for the next `size` characters of the texts."""
        events: list[bytes] = []
        while self._position < len(blocks):
            block, text = blocks[self._position]
            index = self._position
            if not self._is_block_open:
                self._is_block_open = True
                start = message_event(
                    "content_block_start", content_block=_empty(block), index=index
                )
                events.append(start)
            piece = text[self._sent : self._sent + size]
            if piece:
                delta_type, field = _delta_of(block)
                events.append(_delta(index, delta_type, field, piece))
                self._sent += len(piece)
                size -= len(piece)
            if self._sent < len(text):
                break
            events += _ending(block, index)
            events.append(message_event("content_block_stop", index=index))
            self._is_block_open = False
            self._position += 1
            self._sent = 0
        return b"".join(events)

    def _finish_blocks(self, read_input: ReadInput = input_or_empty) -> list[JsonObject]:
        if self.blocks is None:
            return super()._finish_blocks(read_input)
        choice = self.choices[0]
        content = [block for block, _ in self.blocks]
        if self._is_cut_off:
            size = sum(len(segment.text) for segment in choice.segments)
            content = _first_characters(self.blocks, size)
        choice.called = any(block["type"] == "tool_use" for block in content)
        return content


def _empty(block: JsonObject) -> JsonObject:
    """Returns a block as a stream begins it, without what follows in deltas."""
    empty = dict(block)
    if "input" in block:
        empty["input"] = {}
        return empty
    _, field = _delta_of(block)
    if isinstance(block.get(field), str):
        empty[field] = ""
    if isinstance(block.get("citations"), list):
        empty["citations"] = []
    if block["type"] == "thinking" and "signature" in block:
        empty["signature"] = ""
    return empty


def _delta_of(block: JsonObject) -> tuple[str, str]:
    """Returns the type of the deltas of a block, and their field."""
    if "input" in block:
        return "input_json_delta", "partial_json"
    return DELTAS_OF_BLOCKS.get(str(block["type"]), ("", ""))


def _ending(block: JsonObject, index: int) -> list[bytes]:
    """Returns the events after the text of a block: its citations, and its signature."""
    citations = block.get("citations")
    events = [
        _delta(index, "citations_delta", "citation", citation)
        for citation in (citations if isinstance(citations, list) else ())
    ]
    if block["type"] == "thinking" and "signature" in block:
        events.append(_delta(index, "signature_delta", "signature", block["signature"]))
    return events


def _delta(index: int, delta_type: str, field: str, value: object) -> bytes:
    delta = {"type": delta_type, field: value}
    return message_event("content_block_delta", delta=delta, index=index)


def _first_characters(blocks: Blocks, size: int) -> list[JsonObject]:
    """Returns the blocks up to the first `size` characters of their texts.

    A call that is cut off is left out, because its input is not JSON.
    """
    content: list[JsonObject] = []
    for block, text in blocks:
        if len(text) <= size:
            content.append(block)
            size -= len(text)
            continue
        if size and "input" not in block:
            _, field = _delta_of(block)
            content.append({**block, field: text[:size]})
        break
    return content
