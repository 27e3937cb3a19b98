"""Incremental detokenization: the text that each token of a sequence adds.

As in vLLM's streams, text that ends with U+FFFD, the sign of an incomplete character, is held back.
Unlike in vLLM, a tail that stays incomplete is not lost: the last token adds it, as in a plain decode.
"""

import codecs
from collections.abc import Iterable, Sequence
from itertools import accumulate, islice, pairwise
from typing import TypeVar

import tokenizers
from tokenizers.decoders import DecodeStream

from app.text.base import TokenIdError

V = TypeVar("V")

REPLACEMENT = "\ufffd"
ID_LIMIT = 2**32
"""Upper bound of ids, which the library keeps in 32 bits; an id below without a token adds nothing."""
TABLE_BYTES = 16 << 20
"""Memory limit of each table of tokens: enough for most of a large vocabulary."""
ENTRY_BYTES = 140
"""Memory of an entry with the text or the bytes of a token; measured."""


def check_id_range(ids: Iterable[int]) -> None:
    """Raises `TokenIdError` for an id that does not fit 32 bits."""
    for token_id in ids:
        if not 0 <= token_id < ID_LIMIT:
            raise TokenIdError(f"Token id {token_id} is out of range.")


def byte_symbols() -> dict[str, int]:
    """Returns the byte of each symbol in a byte-level vocabulary (GPT-2's table).

    Printable Latin-1 bytes are their own symbols, other bytes follow in order from U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


class TokenTable(dict[int, V]):
    """Values by token id, computed at first use; emptied when they exceed `limit_bytes`."""

    limit_bytes = TABLE_BYTES

    @property
    def size_bytes(self) -> int:
        return ENTRY_BYTES * len(self)

    def keep(self, token_id: int, value: V) -> V:
        if self.size_bytes + ENTRY_BYTES > self.limit_bytes:
            self.clear()
        self[token_id] = value
        return value


class TokenBytes(TokenTable[bytes]):
    """Token id -> its bytes, for byte-level vocabularies."""

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
            return self.keep(token_id, bytes([self._symbols[symbol] for symbol in token]))
        except KeyError:  # an added token with a symbol outside the table, such as a blank
            return self.keep(token_id, token.encode())


class TokenTexts(TokenTable[str | None]):
    """Token id -> text that the token adds anywhere, or None if the text depends on its neighbours."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        super().__init__()
        self.token_bytes = token_bytes

    def __missing__(self, token_id: int) -> str | None:
        raw = self.token_bytes[token_id]
        text = raw.decode("utf-8", "replace")
        if not raw:
            return text
        return self.keep(token_id, None if REPLACEMENT in text else text)


class ByteLevelPieces:
    """Pieces for byte-level vocabularies: a look-up per token, and a UTF-8 decoder for split characters.

    The ids in `skipped` add nothing.
    """

    def __init__(self, texts: TokenTexts, skipped: frozenset[int]) -> None:
        self._texts = texts
        self._skipped = skipped

    def __call__(self, ids: Sequence[int]) -> list[str]:
        pieces: list[str] = []
        texts, skipped = self._texts, self._skipped
        for token_id in ids:
            text = "" if token_id in skipped else texts[token_id]
            if text is None:
                self._split_characters(islice(ids, len(pieces), None), pieces)
                break
            pieces.append(text)
        return pieces

    def _split_characters(self, ids: Iterable[int], pieces: list[str]) -> None:
        """Adds the pieces of `ids`, whose first token ends within a character."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        held, inside = "", False
        for token_id in ids:
            if token_id in self._skipped:
                pieces.append("")
                continue
            text = None if inside else self._texts[token_id]
            if text is None:
                held += decoder.decode(self._texts.token_bytes[token_id])
                inside = held.endswith(REPLACEMENT) or decoder.getstate()[0] != b""
                text, held = ("", held) if inside else (held, "")
            pieces.append(text)
        pieces[-1] += held + decoder.decode(b"", final=True)


class StreamPieces:
    """Pieces for all other decoders, by the library's window over the last tokens."""

    def __init__(self, backend: tokenizers.Tokenizer, skip_special_tokens: bool) -> None:
        self._backend = backend
        self._skip = skip_special_tokens

    def __call__(self, ids: Sequence[int]) -> list[str]:
        if not ids:
            return []
        check_id_range(ids)
        text = self._backend.decode(ids, self._skip)
        # The window gives the end of each token's text, except for decoders that change earlier text.
        # Cutting the whole text at the ends keeps the sum right for them, too.
        ends = [min(end, len(text)) for end in accumulate(self._lengths(ids))]
        ends[-1] = len(text)
        return [text[start:end] for start, end in pairwise([0, *ends])]

    def _lengths(self, ids: Sequence[int]) -> list[int]:
        stream = DecodeStream(skip_special_tokens=self._skip)
        lengths = []
        for token_id in ids:
            try:
                added = stream.step(self._backend, token_id)
            except Exception:  # the library raises this for text that does not extend its prefix
                stream = DecodeStream(skip_special_tokens=self._skip)
                added = stream.step(self._backend, token_id)
            lengths.append(len(added or ""))
        return lengths
