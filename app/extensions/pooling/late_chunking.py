"""Late chunking: one vector for each chunk of a text whose tokens the model has read together.

Chunks have the same number of tokens, except for the last one. Each comes with its place in the
text, so a client can store passages with vectors that know the whole document.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from app.core.server.http.errors import bad_request

Range = tuple[int, int]
"""Start and end, without the end."""


class LateChunk(Struct):
    """Tokens of a chunk, and their characters in the text; None for special tokens alone."""

    token_range: Range
    char_range: Range | None


class LateChunkingMetadata(Struct):
    """The chunks of one input, as in vLLM's responses."""

    chunk_size: int
    input_tokens: int
    chunks: list[LateChunk]
    strategy: str = "fixed_tokens"


def chunk_ranges(token_count: int, chunk_size: int) -> list[Range]:
    """Returns the tokens of each chunk."""
    starts = range(0, token_count, min(chunk_size, token_count))
    return [(start, min(start + chunk_size, token_count)) for start in starts]


def late_chunking_metadata(
    text: str, token_count: int, offsets: Sequence[Range] | None, chunk_size: int
) -> LateChunkingMetadata:
    """Returns the chunks of a text from the place of each token in it.

    Raises:
        ApiError: 400 if the tokenizer does not know the places, or not in the order of the text.
    """
    if not token_count or offsets is None or len(offsets) != token_count:
        raise bad_request(
            "Late chunking requires a fast tokenizer with offsets aligned to all input tokens"
        )
    check_offsets(offsets, len(text))
    chunks = []
    for start, end in chunk_ranges(token_count, chunk_size):
        places = [place for place in offsets[start:end] if place[0] < place[1]]
        char_range = None
        if places:
            char_range = (min(first for first, _ in places), max(last for _, last in places))
        chunks.append(LateChunk(token_range=(start, end), char_range=char_range))
    return LateChunkingMetadata(chunk_size=chunk_size, input_tokens=token_count, chunks=chunks)


def check_offsets(offsets: Sequence[Range], text_length: int) -> None:
    """Raises ApiError 400 for places outside the text, or in another order."""
    previous_start = 0
    previous_end = 0
    for start, end in offsets:
        if not 0 <= start <= end <= text_length:
            raise bad_request("Token offsets are not aligned to the input text")
        if start == end:
            continue
        if start < previous_start or end < previous_end:
            raise bad_request("Token offsets are not in source-text order")
        previous_start = start
        previous_end = end
