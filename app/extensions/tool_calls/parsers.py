"""The parsers of tool calls by their names in vLLM, and how much text each may read."""

from __future__ import annotations

import sys
from typing import Final

from app.extensions.tool_calls import hermes, llama, mistral, pythonic, qwen
from app.extensions.tool_calls.parser import ToolParser

HERMES: Final = ToolParser(
    hermes.parse,
    hermes.HermesStream,
    max_characters=8_000_000,
    characters_per_step=100,
    max_inline_characters=30_000,
)
LLAMA_JSON: Final = ToolParser(
    llama.parse,
    llama.LlamaStream,
    max_characters=200_000,
    characters_per_step=4,
    max_inline_characters=3_000,
)
MISTRAL: Final = ToolParser(
    mistral.parse,
    mistral.stream,
    max_characters=20_000_000,
    characters_per_step=8,
    max_inline_characters=5_000,
)
PYTHONIC: Final = ToolParser(
    pythonic.parse,
    pythonic.PythonicStream,
    max_characters=400_000,
    characters_per_step=2,
    # `is_too_long` bounds the work, and ignores warnings, which threads cannot do.
    max_inline_characters=sys.maxsize,
)
QWEN_CODER: Final = ToolParser(
    qwen.parse,
    qwen.stream,
    max_characters=1_000_000,
    characters_per_step=8,
    max_inline_characters=8_000,
)
PARSERS: Final = {
    "hermes": HERMES,
    "llama3_json": LLAMA_JSON,
    "llama4_json": LLAMA_JSON,
    "mistral": MISTRAL,
    "pythonic": PYTHONIC,
    "qwen3_coder": QWEN_CODER,
    "qwen3_xml": QWEN_CODER,
}
"""The parsers by their names in vLLM. Other names mean the parser of Hermes models."""
