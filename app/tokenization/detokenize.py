"""Incremental detokenization: which text each token of a sequence adds.

As vLLM streams it: text is held back while it ends with U+FFFD, the look of a character that is not complete.
Unlike there, a tail that stays incomplete is not lost: it comes with the last token, as in a plain decode.
"""

import codecs
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import tokenizers
from tokenizers.decoders import DecodeStream

from app.tokenization.base import TokenIdError

REPLACEMENT = "\ufffd"
ID_LIMIT = 2**32
"""The library keeps ids in 32 bits; below that, an id without a token is legal and adds nothing."""


def check_id_range(ids: Iterable[int]) -> None:
    """Raise `TokenIdError` for an id that does not fit 32 bits."""
    for token_id in ids:
        if not 0 <= token_id < ID_LIMIT:
            raise TokenIdError(f"Token id {token_id} is out of range.")


def byte_symbols() -> dict[str, int]:
    """Return the byte that each symbol of a byte-level vocabulary stands for.

    Printable Latin-1 bytes are their own symbol, the others follow from U+0100 in order (GPT-2's table).
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(hidden)}


class TokenBytes(dict[int, bytes]):
    """Token id -> its bytes, for byte-level vocabularies; filled as ids are met: loading stays quick."""

    def __init__(self, backend: tokenizers.Tokenizer, skipped: frozenset[int] = frozenset()) -> None:
        super().__init__(dict.fromkeys(skipped, b""))
        self._backend = backend
        self._symbols = byte_symbols()

    def __missing__(self, token_id: int) -> bytes:
        check_id_range((token_id,))
        token = self._backend.id_to_token(token_id)
        if token is None:
            return b""  # not remembered: there are 2**32 of them
        try:
            value = bytes([self._symbols[symbol] for symbol in token])
        except KeyError:  # an added token with a symbol outside the table, such as a blank
            value = token.encode()
        self[token_id] = value
        return value


class TokenTexts(dict[int, str | None]):
    """Token id -> the text it adds wherever it stands, or None if that depends on its neighbours."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        super().__init__()
        self._bytes = token_bytes

    def __missing__(self, token_id: int) -> str | None:
        raw = self._bytes[token_id]
        text: str | None = raw.decode("utf-8", "replace")
        if text and REPLACEMENT in text:
            text = None
        if raw:
            self[token_id] = text
        return text


class ByteLevelPieces:
    """Pieces for byte-level vocabularies: a look-up per token, a UTF-8 decoder where characters are split."""

    def __init__(self, backend: tokenizers.Tokenizer, skipped: frozenset[int]) -> None:
        self._bytes = TokenBytes(backend, skipped)
        self._texts = TokenTexts(self._bytes)

    def __call__(self, ids: Sequence[int]) -> list[str]:
        pieces: list[str] = []
        for token_id in ids:
            text = self._texts[token_id]
            if text is None:
                return pieces + self._split_characters(ids[len(pieces) :])
            pieces.append(text)
        return pieces

    def _split_characters(self, ids: Sequence[int]) -> list[str]:
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        pieces: list[str] = []
        held, inside = "", False
        for token_id in ids:
            text = None if inside else self._texts[token_id]
            if text is None:
                held += decoder.decode(self._bytes[token_id])
                inside = held.endswith(REPLACEMENT) or decoder.getstate()[0] != b""
                text, held = ("", held) if inside else (held, "")
            pieces.append(text)
        tail = held + decoder.decode(b"", final=True)
        return [*pieces[:-1], pieces[-1] + tail] if tail else pieces


class StreamPieces:
    """Pieces for every other kind of decoder, by the library's own window over the last tokens."""

    def __init__(self, backend: tokenizers.Tokenizer, skip_special_tokens: bool) -> None:
        self._backend = backend
        self._skip = skip_special_tokens

    def __call__(self, ids: Sequence[int]) -> list[str]:
        if not ids:
            return []
        check_id_range(ids)
        text = self._backend.decode(ids, self._skip)
        # The window knows where a token's text ends, save for decoders that change text already given out:
        # cutting the whole text at those places keeps the sum right for them too.
        ends = [min(end, len(text)) for end in accumulate(self._lengths(ids))]
        ends[-1] = len(text)
        return [text[start:end] for start, end in pairwise([0, *ends])]

    def _lengths(self, ids: Sequence[int]) -> list[int]:
        stream = DecodeStream(skip_special_tokens=self._skip)
        lengths = []
        for token_id in ids:
            try:
                added = stream.step(self._backend, token_id)
            except Exception:  # the library's word for text that does not grow from its prefix
                stream = DecodeStream(skip_special_tokens=self._skip)
                added = stream.step(self._backend, token_id)
            lengths.append(len(added or ""))
        return lengths
