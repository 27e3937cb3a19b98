"""The content blocks of a recorded message, and whether a rule needs them as they are."""

from msgspec import Struct

from app.extensions.recording.conversation import Json
from config.untrusted import decode_untrusted

BLOCK_TYPES = ("thinking", "text", "tool_use")
"""Types of blocks that a rule can have without `blocks`, in the order of a reply."""
REQUEST_TYPES = ("text", "image", "tool_use", "tool_result", "tool_reference", "thinking")
"""Types of blocks of a request that vLLM accepts, in addition to hidden thoughts."""
DIRECT = {"type": "direct"}
"""The `caller` of a tool call that the model itself makes."""
HIDDEN_THOUGHTS = "redacted_thinking"


class RecordedBlocks(Struct):
    """The blocks of a message, from its content or from the events of its stream."""

    _blocks: list[Json] = []
    _inputs: dict[int, str] = {}
    """JSON of the input of a streamed call, by the position of its block."""

    def add(self, block: Json) -> None:
        """Adds a whole block."""
        self._blocks.append(block)

    def start(self, block: Json) -> None:
        """Adds a block of a stream, whose texts follow."""
        self._blocks.append(dict(block))

    def add_delta(self, delta: Json) -> None:
        """Adds a piece of the last block: each field continues the text of the same name."""
        block = self._blocks[-1]
        for name, value in delta.items():
            if name == "type":
                continue
            if name == "partial_json":
                position = len(self._blocks) - 1
                self._inputs[position] = self._inputs.get(position, "") + value
            elif name == "citation":
                block["citations"] = [*(block.get("citations") or ()), value]
            elif isinstance(value, str) and isinstance(block.get(name), str):
                block[name] += value
            else:
                block[name] = value

    def content(self) -> list[Json]:
        """Returns the blocks.

        Raises:
            ValueError: A block has no type, or the input of a call is not JSON.
        """
        content: list[Json] = []
        for position, block in enumerate(self._blocks):
            if not isinstance(block["type"], str):
                raise ValueError(f"type {str(block['type'])[:20]} of block {position + 1}")
            text = self._inputs.get(position)
            if text:
                block = {**block, "input": decode_untrusted(text)}
            content.append(block)
        return content

    @property
    def are_needed(self) -> bool:
        """True if text, reasoning and calls of a rule cannot express the content.

        A rule has at most one block of thoughts, then one of text, and then calls.
        """
        order = 0
        for block in self._blocks:
            kind = block.get("type")
            if kind not in BLOCK_TYPES or block.get("citations"):
                return True
            if (block.get("caller") or DIRECT) != DIRECT:
                return True
            if kind == "thinking" and not block.get("thinking"):
                return True
            place = BLOCK_TYPES.index(kind)
            if place < order:
                return True
            order = place if kind == "tool_use" else place + 1
        return False


def is_refused_message(body: Json) -> bool:
    """Returns whether vLLM rejects a request for tools or blocks of Anthropic's server."""
    for tool in body.get("tools") or ():
        if not isinstance(tool, dict) or not isinstance(tool.get("input_schema"), dict):
            return True
    for message in body.get("messages") or ():
        content = message.get("content")
        for block in content if isinstance(content, list) else ():
            if block.get("type") not in (*REQUEST_TYPES, HIDDEN_THOUGHTS):
                return True
    return False
