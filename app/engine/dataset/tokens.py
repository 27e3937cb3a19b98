"""The column `gen_tokens`: token ids and texts of a reply, in all its spellings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import msgspec

from app.text.base import Tokenizer


class DatasetError(Exception):
    """A dataset cannot be used, downloaded or built; its text is one line for the user."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


IDS, STRINGS = ("tokens", "numbers"), ("strings",)
"""Keys of the two lists, in any case."""
ID_LIMIT = 2**32
NO_ID = 0
"""Placeholder id of a recorded string that encodes to no token."""


class RecordedTokens(msgspec.Struct, frozen=True):
    """A reply as it was recorded; one of the two may be missing (empty)."""

    ids: Sequence[int]
    strings: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids) or len(self.strings)

    def cut(self, most: int) -> RecordedTokens:
        return self if len(self) <= most else RecordedTokens(self.ids[:most], self.strings[:most])


def decode(raw: object) -> RecordedTokens:
    """Parses JSON of an object with two lists, or one list, of strings or ids. Raises DatasetError."""
    try:
        value = msgspec.json.decode(raw) if isinstance(raw, str | bytes) else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = None
    lists: dict[str, object] = {"tokens": value}
    if isinstance(value, dict):
        lists = {key.lower(): part for key, part in value.items()}
    elif isinstance(value, list) and _are_strings(value):
        lists = {"strings": value}
    ids, strings = (
        next((part for key in keys if isinstance(part := lists.get(key), list)), [])
        for keys in (IDS, STRINGS)
    )
    are_ids = all(type(each) is int and 0 <= each < ID_LIMIT for each in ids)
    if not (ids or strings) or not are_ids or not _are_strings(strings):
        raise DatasetError("a value of gen_tokens holds no token ids and no strings")
    return RecordedTokens(ids, strings)


def _are_strings(values: list[object]) -> TypeGuard[list[str]]:
    return all(type(each) is str for each in values)


def encode(tokens: RecordedTokens) -> str:
    """Returns JSON that this program and llm-d's simulator read."""
    return msgspec.json.encode({"Tokens": tokens.ids, "Strings": tokens.strings}).decode()


def completed(tokens: RecordedTokens, tokenizer: Tokenizer) -> RecordedTokens:
    """Returns `tokens` with one id and one string each.

    Ids without matching strings get the tokenizer's strings. Strings without ids stay as they are: they get
    the ids of the whole text if it splits alike, else each the id of its first token. Raises TokenizerError
    as the tokenizer does.
    """
    ids, strings = tokens.ids, tokens.strings
    if len(ids) == len(strings):
        return tokens
    if ids:
        return RecordedTokens(ids, tokenizer.pieces(ids))
    whole = tokenizer.encode("".join(strings))
    if len(whole) == len(strings) and tokenizer.pieces(whole) == list(strings):
        return RecordedTokens(whole, strings)
    return RecordedTokens([each[0] if each else NO_ID for each in tokenizer.encode_many(strings)], strings)
