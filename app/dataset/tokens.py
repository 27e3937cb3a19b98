"""The column `gen_tokens`: a reply as token ids and as the text of each, in all its spellings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from app.dataset.errors import DatasetError
from app.tokenization import Tokenizer

IDS, STRINGS = ("tokens", "numbers"), ("strings",)
"""Keys of the two lists, in any case."""
ID_LIMIT = 2**32
NO_ID = 0
"""Stands for a recorded string that no token begins."""


class Tokens(msgspec.Struct, frozen=True):
    """A reply as it was recorded; one of the two may be missing (empty)."""

    ids: Sequence[int]
    strings: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids) or len(self.strings)

    def cut(self, most: int) -> Tokens:
        """The first `most` tokens."""
        return self if len(self) <= most else Tokens(self.ids[:most], self.strings[:most])


def decode(raw: object) -> Tokens:
    """Read a value of `gen_tokens`: JSON as text or bytes.

    An object with two lists (`Tokens` or `numbers`, and `Strings`, in any case), or one list of
    strings or ids. DatasetError for anything else, and for a reply without a token.
    """
    try:
        value = msgspec.json.decode(raw) if isinstance(raw, str | bytes) else None
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = None
    lists = (
        {key.lower(): part for key, part in value.items()} if isinstance(value, dict) else {"tokens": value}
    )
    if isinstance(value, list) and all(type(each) is str for each in value):
        lists = {"strings": value}
    tokens = Tokens(_first(lists, IDS), _first(lists, STRINGS))
    if not len(tokens) or not _are_ids(tokens.ids) or not all(type(each) is str for each in tokens.strings):
        raise DatasetError("a value of gen_tokens holds no token ids and no strings")
    return tokens


def _lists(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {key.lower(): part for key, part in value.items()}
    if isinstance(value, list) and all(type(each) is str for each in value):
        return {"strings": value}
    return {"tokens": value}


def _first(lists: dict[str, Any], keys: Sequence[str]) -> list[Any]:
    return next((lists[key] for key in keys if isinstance(lists.get(key), list)), [])


def _are_ids(ids: Sequence[Any]) -> bool:
    return all(type(each) is int and 0 <= each < ID_LIMIT for each in ids)


def encode(tokens: Tokens) -> str:
    """`tokens` as this program and llm-d's simulator read them."""
    return msgspec.json.encode({"Tokens": tokens.ids, "Strings": tokens.strings}).decode()


def completed(tokens: Tokens, tokenizer: Tokenizer) -> Tokens:
    """`tokens` with one id and one string each, whatever was recorded.

    Ids without strings that fit get those of `tokenizer`. Strings without ids keep their cut: they get
    the ids of the whole text if that is cut alike, else each the id that it begins with. TokenizerError
    as the tokenizer raises it.
    """
    ids, strings = tokens.ids, tokens.strings
    if len(ids) == len(strings):
        return tokens
    if ids:
        return Tokens(ids, tokenizer.pieces(ids))
    whole = tokenizer.encode("".join(strings))
    if len(whole) == len(strings) and tokenizer.pieces(whole) == list(strings):
        return Tokens(whole, strings)
    return Tokens([each[0] if each else NO_ID for each in tokenizer.encode_many(strings)], strings)
