"""The texts in content blocks of a rule, which the model generates and a stream sends in pieces."""

import json
from collections.abc import Mapping, Sequence

from app.extensions.scripts.rules import ScriptError

MAX_BLOCKS_BYTES = 1 << 20
"""Most JSON of the blocks of a rule. Results of a web search have hundreds of kilobytes."""
FIELDS_OF_TEXTS = {"text": "text", "thinking": "thinking", "compaction": "content"}
"""The field with the text of a block, by its type."""


def check_blocks(blocks: Sequence[Mapping[str, object]]) -> None:
    """Checks the blocks of a rule.

    Raises:
        ScriptError: A block has no type, the blocks are not JSON, or they are too long.
    """
    for number, block in enumerate(blocks):
        if not isinstance(block.get("type"), str):
            raise ScriptError(f"then.blocks.{number}: type must be a text")
    try:
        size = len(json.dumps(blocks, allow_nan=False, ensure_ascii=False).encode())
    except (RecursionError, TypeError, ValueError) as error:
        raise ScriptError(f"then.blocks: must be JSON: {error}") from None
    if size > MAX_BLOCKS_BYTES:
        raise ScriptError(f"then.blocks: must not exceed {MAX_BLOCKS_BYTES >> 20} MiB of JSON")


def streamed_text(block: Mapping[str, object]) -> str:
    """Returns the text that the model generates: a text, thoughts, or the input of a call.

    It is empty for the other blocks, such as the results of tools that the provider runs.
    """
    if "input" in block:
        return json.dumps(block["input"], ensure_ascii=False)
    text = block.get(FIELDS_OF_TEXTS.get(str(block["type"]), ""))
    return text if isinstance(text, str) else ""
