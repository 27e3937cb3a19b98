"""Texts of single tokens and the pieces of a stream, for `tokenizers` vocabularies.

As in vLLM's streams, text that ends with U+FFFD, the sign of an incomplete character, is held back.
Unlike in vLLM, a tail that stays incomplete is not lost: the last token adds it, as in a plain
decode.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, cast

from app.core.text.base import TokenIdError

if TYPE_CHECKING:
    import tokenizers

REPLACEMENT = "\ufffd"
ID_LIMIT = 2**32
"""Upper bound of ids, which the library keeps in 32 bits.

An id below it without a token adds nothing.
"""

RUN_TOKENS = 10_000
"""Tokens that are looked up at once, in less than 1 ms: no other thread runs meanwhile."""


def check_id_range(ids: Iterable[int]) -> None:
    """Raises `TokenIdError` for an id that does not fit 32 bits."""
    for token_id in ids:
        if not 0 <= token_id < ID_LIMIT:
            raise TokenIdError(token_id)


def byte_symbols() -> dict[str, int]:
    """Returns the byte of each symbol in a byte-level vocabulary (GPT-2's table).

    Printable Latin-1 bytes are their own symbols, other bytes follow in order from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    symbols = {chr(byte): byte for byte in printable}
    hidden = [byte for byte in range(256) if chr(byte) not in symbols]
    return symbols | {chr(0x100 + number): byte for number, byte in enumerate(hidden)}


class TokenBytes(dict[int, bytes]):
    """Token id -> its bytes, for byte-level vocabularies; filled at first use."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        super().__init__()
        self._backend = backend
        self._symbols = byte_symbols()

    def __missing__(self, token_id: int) -> bytes:
        check_id_range((token_id,))
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""  # not stored: there are up to 2**32 such ids
        try:
            raw = bytes([self._symbols[symbol] for symbol in token])
        except KeyError:  # an added token with a symbol outside the table, such as a blank
            raw = token.encode()
        self[token_id] = raw
        return raw


class TokenTexts(dict[int, str | None]):
    """Token id -> text that the token adds anywhere; None if the text depends on its neighbors."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        super().__init__()
        self.token_bytes = token_bytes

    def __missing__(self, token_id: int) -> str | None:
        raw = self.token_bytes[token_id]
        text: str | None = raw.decode("utf-8", "replace")
        if not raw:
            return text
        if text and REPLACEMENT in text:
            text = None
        self[token_id] = text
        return text


def byte_level_pieces(ids: Sequence[int], texts: TokenTexts, skipped: frozenset[int]) -> list[str]:
    """Returns the pieces of `ids`; those in `skipped` add nothing."""
    pieces: list[str] = []
    for start in range(0, len(ids), RUN_TOKENS):
        run = ids[start : start + RUN_TOKENS]
        if not skipped.isdisjoint(run):
            return _split_characters(ids, texts, skipped)
        run_texts = [*map(texts.__getitem__, run)]
        if None in run_texts:
            return _split_characters(ids, texts, skipped)
        pieces += cast("list[str]", run_texts)
    return pieces


def _split_characters(ids: Sequence[int], texts: TokenTexts, skipped: frozenset[int]) -> list[str]:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces: list[str] = []
    held_text = ""
    is_incomplete = False
    for token_id in ids:
        if token_id in skipped:
            pieces.append("")
            continue
        text = None if is_incomplete else texts[token_id]
        if text is None:
            text = held_text + decoder.decode(texts.token_bytes[token_id])
            held_text = ""
            is_incomplete = text.endswith(REPLACEMENT) or decoder.getstate()[0] != b""
            if is_incomplete:
                held_text = text
                text = ""
        pieces.append(text)
    pieces[-1] += held_text + decoder.decode(b"", final=True)
    return pieces


def stream_pieces(
    ids: Sequence[int], backend: tokenizers.Tokenizer, skip_special_tokens: bool
) -> list[str]:
    """Returns the pieces of `ids` for all other decoders.

    The library decodes a window over the last tokens.
    """
    from tokenizers.decoders import DecodeStream

    if not ids:
        return []
    check_id_range(ids)
    stream = DecodeStream(skip_special_tokens=skip_special_tokens)
    lengths: list[int] = []
    for token_id in ids:
        try:
            added = stream.step(backend, token_id)
        except Exception:  # the library raises this for text that does not extend its prefix
            stream = DecodeStream(skip_special_tokens=skip_special_tokens)
            added = stream.step(backend, token_id)
        lengths.append(len(added or ""))
    # The window gives the end of each token's text, except for decoders that change earlier text.
    # Cutting the whole text at the ends keeps the sum right for them, too.
    text = backend.decode(ids, skip_special_tokens)
    ends = [min(end, len(text)) for end in accumulate(lengths)]
    ends[-1] = len(text)
    return [text[start:end] for start, end in pairwise([0, *ends])]
