"""The column `gen_tokens`: token ids and texts of a recorded reply, in all its spellings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import msgspec
from msgspec import Struct

from app.core.engine.errors import DatasetError
from app.core.text.base import Tokenizer
from config.untrusted import UntrustedDataError, decode_untrusted

ID_KEYS = ("tokens", "numbers")
"""Keys of the list of ids, in any case."""
STRING_KEYS = ("strings",)
"""Keys of the list of texts, in any case."""
ID_LIMIT = 2**32
MISSING_ID = 0
"""Id of a recorded string that encodes to no token."""


class RecordedTokens(Struct, frozen=True):
    """A reply as it was recorded; one of the two may be missing (empty)."""

    ids: Sequence[int]
    strings: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids) or len(self.strings)

    def cut(self, max_tokens: int) -> RecordedTokens:
        """Returns the first `max_tokens` tokens."""
        if len(self) <= max_tokens:
            return self
        return RecordedTokens(self.ids[:max_tokens], self.strings[:max_tokens])


def decode(raw: object) -> RecordedTokens:
    """Parses JSON of an object with two lists, or one list, of strings or ids.

    Raises:
        DatasetError: The value has no ids and no strings.
    """
    lists = _lists(raw)
    ids = _first_list(lists, ID_KEYS)
    strings = _first_list(lists, STRING_KEYS)
    are_ids = all(type(token_id) is int and 0 <= token_id < ID_LIMIT for token_id in ids)
    if not (ids or strings) or not are_ids or not _are_strings(strings):
        raise DatasetError("a gen_tokens value must contain token IDs or strings")
    return RecordedTokens(ids, strings)


def encode(tokens: RecordedTokens) -> str:
    """Returns JSON that this program and llm-d's simulator read."""
    return msgspec.json.encode({"Tokens": tokens.ids, "Strings": tokens.strings}).decode()


def complete(tokens: RecordedTokens, tokenizer: Tokenizer) -> RecordedTokens:
    """Returns `tokens` with one id and one string each.

    Ids without matching strings get the tokenizer's strings. Strings without ids stay as they are:
    they get the ids of the whole text if it splits alike, else each the id of its first token.

    Raises TokenizerError as the tokenizer does.
    """
    ids = tokens.ids
    strings = tokens.strings
    if len(ids) == len(strings):
        return tokens
    if ids:
        return RecordedTokens(ids, tokenizer.pieces(ids))
    text_ids = tokenizer.encode("".join(strings))
    if len(text_ids) == len(strings) and tokenizer.pieces(text_ids) == list(strings):
        return RecordedTokens(text_ids, strings)
    first_ids = []
    for string_ids in tokenizer.encode_many(strings):
        first_ids.append(string_ids[0] if string_ids else MISSING_ID)
    return RecordedTokens(first_ids, strings)


def _lists(raw: object) -> Mapping[str, object]:
    """Returns the values of `raw` by their keys in lower case."""
    value: object = None
    if isinstance(raw, str | bytes):
        try:
            value = decode_untrusted(raw)
        except UntrustedDataError:
            value = None
    if isinstance(value, dict):
        return {key.lower(): part for key, part in value.items()}
    if isinstance(value, list) and _are_strings(value):
        return {"strings": value}
    return {"tokens": value}


def _first_list(lists: Mapping[str, object], keys: Sequence[str]) -> list[Any]:
    for key in keys:
        values = lists.get(key)
        if isinstance(values, list):
            return values
    return []


def _are_strings(values: list[object]) -> TypeGuard[list[str]]:
    return all(type(value) is str for value in values)
