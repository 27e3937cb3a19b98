"""Recorded replies: which one a prompt gets, and how much of it (simulator.md 5.10)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from random import Random

from msgspec import Struct

from app.dataset.catalogue import Turn, ids_hash, text_hash
from app.dataset.errors import DatasetError
from app.dataset.rows import FileRows, MemoryRows, Rows
from app.dataset.tokens import completed, decode
from app.tokenization import Tokenizer

logger = logging.getLogger(__name__)


class Recorded(Struct, frozen=True):
    """A recorded reply, cut to what may be said: `texts[i]` is the text of token `ids[i]`."""

    ids: Sequence[int]
    texts: Sequence[str]
    missing: int
    """Tokens to add behind these, so that the reply is as long as it must be."""
    reached_limit: bool
    """With them, the reply is as long as it may be: it ends with `length`, else with `stop`."""


class Dataset:
    """The replies of one file; made by `open_dataset`."""

    def __init__(self, name: str, rows: Rows, tokenizer: Tokenizer) -> None:
        self.name = name
        self._rows = rows
        self._tokenizer = tokenizer
        self._has_warned = False

    def __len__(self) -> int:
        """Replies."""
        return len(self._rows.catalogue)

    def __bool__(self) -> bool:
        return True

    @property
    def size_bytes(self) -> int:
        """Memory that is held: the catalogue, and the copy of the file if there is one."""
        return self._rows.size_bytes

    def reply(
        self, prompt_ids: Sequence[int], turns: Sequence[Turn], least: int, most: int, rng: Random
    ) -> Recorded | None:
        """A reply to the prompt: one that was recorded for it, else a random one.

        One of `least` to `most` tokens if there is any, else a longer one, which is cut, else a shorter one.
        The random draw is made before anything is waited for, so replies depend on the order of calls only.

        Args:
            prompt_ids: the prompt, hashed as today's files do.
            turns: the same as (role, text) of each message, hashed as older files do; may be empty.
            least: tokens that the reply must have (`most` with ignore_eos, else min_tokens or 1).
            most: tokens that it may have.
            rng: a stream of randomness; one number is drawn from it.

        Returns:
            None, and a warning in the log the first time, when the file does not give the reply: it was
            locked or changed, or the row is broken.

        Raises:
            TokenizerError: ids or strings are missing in the row, and the tokenizer cannot add them.
        """
        key = self._key(prompt_ids, turns, least, most, rng)
        try:
            tokens = decode(self._rows.read(key)).cut(most)
        except DatasetError as error:
            self._warn(error)
            return None
        tokens = completed(tokens, self._tokenizer)
        length = len(tokens)
        missing = max(0, least - length)
        return Recorded(tokens.ids, tokens.strings, missing, length + missing >= most)

    def close(self) -> None:
        """Close the file."""
        self._rows.close()

    def _key(
        self, prompt_ids: Sequence[int], turns: Sequence[Turn], least: int, most: int, rng: Random
    ) -> int:
        catalogue = self._rows.catalogue
        key = catalogue.recorded(ids_hash(prompt_ids), least, most, rng)
        if key is None and turns:
            key = catalogue.recorded(text_hash(turns), least, most, rng)
        return catalogue.any(least, most, rng) if key is None else key

    def _warn(self, error: DatasetError) -> None:
        if not self._has_warned:
            logger.warning("dataset %s gave no reply, sample text is used instead: %s", self.name, error)
        self._has_warned = True


def open_dataset(path: Path, table_name: str, in_memory: bool, tokenizer: Tokenizer) -> Dataset:
    """The dataset in the file `path`. DatasetError when it is locked, broken or has no such table."""
    kind = MemoryRows if in_memory else FileRows
    return Dataset(str(path), kind(path, table_name), tokenizer)
