"""How long a message may take to be taken apart, found out before it is: protobuf does it in one go.

A text or a tensor of megabytes is a copy. Millions of tokens, or of empty strings in a list, are tens and
hundreds of milliseconds in which nobody else would be served.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from app.clock.pause import Slices
from app.http.errors import ApiError, bad_request

LONG: Final = 1 << 17
"""Bytes, of a message, or of all of it but texts, tensors and tokens, that may be whatever they like."""
MOST_TOKENS: Final = 1 << 18
"""Of a prompt that is longer than the context and will be cut."""
VARINT, EIGHT_BYTES, BYTES, FOUR_BYTES = 0, 1, 2, 5
CONTINUED: Final = bytes(range(0x80, 0x100))

Fields = Mapping[int, "Fields | str"]
LONGEST_TEXT: Final = 8 << 20
"""Bytes."""
TEXT, TENSOR_BYTES, TOKENS = "text", "tensor", "tokens"
TOKENIZED: Final[Fields] = {1: TEXT, 2: TOKENS}
TENSOR: Final[Fields] = {1: TENSOR_BYTES}
MEDIA: Final[Fields] = {2: TENSOR, 3: {2: TENSOR}}
CONSTRAINTS: Final[Fields] = {16: TEXT, 17: TEXT, 18: TEXT, 19: TEXT}
LARGE: Final[Mapping[str, Fields]] = {
    "GenerateRequest": {2: TOKENIZED, 3: TEXT, 4: CONSTRAINTS, 7: MEDIA, 11: MEDIA},
    "EmbedRequest": {2: TOKENIZED},
}
"""By message, the fields in which much may be: their numbers, and what is in them."""


def check_size(data: bytes, name: str, most_tokens: int, within: Slices) -> None:
    """ApiError 400 for a message `name` that would take too long, or is none. Pauses `within` many fields."""
    if len(data) > LONG:
        _Scan(data, max(most_tokens, MOST_TOKENS), within).look(0, len(data), LARGE.get(name, {}))


class _Scan:
    def __init__(self, data: bytes, most_tokens: int, within: Slices) -> None:
        self._data, self._most_tokens, self._within = data, most_tokens, within
        self._others = self._tokens = 0

    def look(self, at: int, end: int, fields: Fields) -> None:
        """At the fields from `at` to `end`."""
        while at < end:
            begin = at
            tag, at = self._number(at)
            inner, size = fields.get(tag >> 3), 0
            if tag & 7 == BYTES:
                size, at = self._number(at)
            elif tag & 7 == VARINT:
                _, at = self._number(at)
            elif tag & 7 in (EIGHT_BYTES, FOUR_BYTES):
                at += 8 if tag & 7 == EIGHT_BYTES else 4
            else:
                raise _no_message()
            if at + size > end:
                raise _no_message()
            self._count(at - begin + (size if inner is None else 0))
            if inner == TEXT and size > LONGEST_TEXT:
                raise bad_request(f"A text has more than {LONGEST_TEXT >> 20} MiB.", "input_text")
            if inner == TOKENS:
                self._count_tokens(self._data[at : at + size])
            elif isinstance(inner, Mapping):
                self.look(at, at + size, inner)
            at += size
            self._within.spend()

    def _number(self, at: int) -> tuple[int, int]:
        """A number and where it ends."""
        value = shift = 0
        while at < len(self._data) and shift < 64:
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise _no_message()

    def _count(self, size: int) -> None:
        self._others += size
        if self._others > LONG:
            raise bad_request(f"The message has more than {LONG} bytes beside its texts, tensors and tokens.")

    def _count_tokens(self, packed: bytes) -> None:
        self._tokens += len(packed.translate(None, CONTINUED))
        if self._tokens > self._most_tokens:
            raise bad_request(f"The prompt has more than {self._most_tokens} tokens.", "input_tokens")


def _no_message() -> ApiError:
    return bad_request("The message is broken.")
