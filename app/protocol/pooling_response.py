"""What the pooling routes answer (vllm-api.md section 8): keys in vLLM's order."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Raw, Struct

from app.protocol.usage import Usage


class ItemList(Struct, kw_only=True):
    """A list of vectors, scores or classes. `created` is Unix seconds."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: Raw
    usage: Usage


class PromptUsage(Struct):
    """The tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EncodedItem(Struct):
    """Where an input's numbers are in a body of bytes, from byte `start` up to `end`."""

    index: int
    embed_dtype: str
    endianness: str
    start: int
    end: int
    shape: tuple[int, ...]


class BytesMetadata(Struct):
    """What a body of bytes consists of."""

    id: str
    created: int
    model: str
    data: Sequence[EncodedItem]
    usage: PromptUsage
