"""Recorded replies: selects one for a prompt and cuts it to length (simulator.md 5.10)."""

from __future__ import annotations

import logging
import sqlite3
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TypeGuard

import msgspec
import sqlalchemy as sql
from gevent import monkey
from msgspec import Struct
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import UserDefinedType

from app.base.clock.pause import call_off_hub
from app.engine.core.errors import DatasetError
from app.text.base import Tokenizer

Turn = tuple[str, str]
"""Role and text of a message; a text prompt is one turn of the user."""

ROLES = frozenset({"user", "assistant"})
PREFIX_BYTES = 8
"""Bytes of a hash that are kept; enough to distinguish millions of prompts."""


def ids_hash(ids: Sequence[int]) -> bytes:
    """SHA-256 of the prompt's token ids, each as four bytes, the lowest first."""
    packed = array("I", ids)
    if sys.byteorder == "big":
        packed.byteswap()
    return sha256(packed).digest()


def text_hash(turns: Iterable[Turn]) -> bytes:
    """SHA-256 of the prompt's text with a headline per turn, as older files compute it."""
    heads = ((role if role in ROLES else "unknown", text) for role, text in turns)
    written = "".join(f"### {role}:\n{text}\n" for role, text in heads)
    return sha256(written.encode("utf-8", "surrogatepass")).digest()


class Catalogue:
    """All rows with at least one token, in two orders: by length, and by hash and then length.

    `rows` are (`prompt_hash`, `n_gen_tokens`, key) as read from SQLite. A row without a positive
    length is left out; a value that is no hash matches no prompt.
    """

    def __init__(self, rows: Iterable[tuple[object, object, int]]) -> None:
        self._prefixes, self._lengths, self._keys = array("Q"), array("q"), array("q")
        for digest, length, key in rows:
            if isinstance(length, int) and length > 0:
                self._prefixes.append(_prefix(digest) if isinstance(digest, bytes) else 0)
                self._lengths.append(length)
                self._keys.append(key)
        self._by_length = array("I", sorted(range(len(self._keys)), key=self._lengths.__getitem__))
        # Sorting keeps the order of equals: rows of the same hash stay in the order of their
        # length.
        self._by_hash = array("I", sorted(self._by_length, key=self._prefixes.__getitem__))

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def size_bytes(self) -> int:
        arrays = (self._prefixes, self._lengths, self._keys, self._by_length, self._by_hash)
        return sum(map(sys.getsizeof, arrays))

    def recorded(self, digest: bytes, least: int, most: int, rng: Random) -> int | None:
        """Key of a random row with this hash:

        a fitting, else a longer, else a shorter one, else None.
        """
        prefix, prefix_of = _prefix(digest), self._prefixes.__getitem__
        first = bisect_left(self._by_hash, prefix, key=prefix_of)
        end = bisect_right(self._by_hash, prefix, first, key=prefix_of)
        start, stop = self._fitting(self._by_hash, least, most, first, end)
        ranges = ((start, stop), (stop, end), (first, start))
        chosen = next((each for each in ranges if each[0] < each[1]), None)
        return None if chosen is None else self._keys[self._by_hash[rng.randrange(*chosen)]]

    def any(self, least: int, most: int, rng: Random) -> int:
        """Key of a random row with `least` to `most` tokens, else of any row.

        ValueError without rows.
        """
        start, stop = self._fitting(self._by_length, least, most, 0, len(self))
        position = rng.randrange(start, stop) if start < stop else rng.randrange(len(self))
        return self._keys[self._by_length[position]]

    def _fitting(
        self, order: array[int], least: int, most: int, first: int, end: int
    ) -> tuple[int, int]:
        """Range of positions in `order[first:end]` of the rows with `least` to `most` tokens."""
        length_of = self._lengths.__getitem__
        start = bisect_left(order, least, first, end, key=length_of)
        return start, bisect_right(order, most, start, end, key=length_of)


def _prefix(digest: bytes) -> int:
    return int.from_bytes(digest[:PREFIX_BYTES], "big")


logger = logging.getLogger(__name__)
BUSY_S = 0.25
"""Longest wait for another process's lock on the file, in seconds."""
ROWS_PER_READ = 10_000
COLUMNS = {"id": "INTEGER", "prompt_hash": "BLOB", "gen_tokens": "JSON", "n_gen_tokens": "INTEGER"}
"""Required columns, each with its declared type."""


class Declared(UserDefinedType[object]):
    """A column type for declarations only: values stay as SQLite stores and returns them."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **kwargs: object) -> str:
        return self.name


def replies_table(name: str) -> sql.Table:
    """Defines the table `name`; its index lets a start read hashes and lengths without the replies."""
    others = [
        sql.Column(title, Declared(declared), nullable=False)
        for title, declared in COLUMNS.items()
        if title != "id"
    ]
    index = sql.Index(f"{name}_prompt_hash", "prompt_hash", "n_gen_tokens")
    return sql.Table(
        name, sql.MetaData(), sql.Column("id", sql.Integer, primary_key=True), *others, index
    )


def checked_key(connection: sql.Connection, table: sql.Table) -> sql.ColumnElement[int]:
    """Returns the key column: `id` if it is the primary key, else `rowid`. Raises DatasetError."""
    info = sql.func.pragma_table_info(table.name).table_valued(
        sql.column("name"), sql.column("type"), sql.column("pk")
    )
    found = {row.name.lower(): row for row in connection.execute(sql.select(info))}
    if not found:
        raise DatasetError(f"it has no table {table.name}")
    for name, declared in COLUMNS.items():
        if name not in found:
            raise DatasetError(f"table {table.name} has no column {name}")
        if (kind := found[name].type).upper() != declared:
            raise DatasetError(
                f"column {name} of table {table.name} is declared as {kind or 'nothing'}, not {declared}"
            )
    return table.c.id if found["id"].pk else sql.literal_column("rowid", sql.Integer)


# The column `gen_tokens`: token ids and texts of a reply, in all its spellings.

IDS, STRINGS = ("tokens", "numbers"), ("strings",)
"""Keys of the two lists, in any case."""
ID_LIMIT = 2**32
NO_ID = 0
"""Placeholder id of a recorded string that encodes to no token."""


class RecordedTokens(Struct, frozen=True):
    """A reply as it was recorded; one of the two may be missing (empty)."""

    ids: Sequence[int]
    strings: Sequence[str]

    def __len__(self) -> int:
        return len(self.ids) or len(self.strings)

    def cut(self, most: int) -> RecordedTokens:
        return self if len(self) <= most else RecordedTokens(self.ids[:most], self.strings[:most])


def decode(raw: object) -> RecordedTokens:
    """Parses JSON of an object with two lists, or one list, of strings or ids.

    Raises DatasetError.
    """
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

    Ids without matching strings get the tokenizer's strings. Strings without ids stay as they are:
    they get the ids of the whole text if it splits alike, else each the id of its first token.
    Raises TokenizerError as the tokenizer does.
    """
    ids, strings = tokens.ids, tokens.strings
    if len(ids) == len(strings):
        return tokens
    if ids:
        return RecordedTokens(ids, tokenizer.pieces(ids))
    whole = tokenizer.encode("".join(strings))
    if len(whole) == len(strings) and tokenizer.pieces(whole) == list(strings):
        return RecordedTokens(whole, strings)
    return RecordedTokens(
        [each[0] if each else NO_ID for each in tokenizer.encode_many(strings)], strings
    )


class Recorded(Struct, frozen=True):
    """A recorded reply, cut to the limit: `texts[i]` is the text of token `ids[i]`."""

    ids: Sequence[int]
    texts: Sequence[str]
    missing: int
    """Tokens to append so that the reply has its least length."""
    reached_limit: bool
    """The reply reaches its limit, missing tokens included:

    it ends with `length`, else with `stop`.
    """


class Dataset:
    """The replies of a file, opened read-only, or of its copy in memory.

    A file is read outside the event loop's thread. Its connections open on first use, hence in the
    worker, and stay open: as many as threads read at once. Reading the copy is faster than
    switching threads.
    """

    def __init__(self, path: Path, table_name: str, in_memory: bool, tokenizer: Tokenizer) -> None:
        """Raises DatasetError when the file is locked, broken or has no such table."""
        self.name = str(path)
        self._tokenizer = tokenizer
        self._has_warned = False
        self._in_memory = in_memory
        # A real lock, shared by the threads of a stock worker; greenlets of one thread never
        # contend for it.
        self._reading = monkey.get_original("threading", "Lock")()
        self._idle: deque[sql.Connection] = deque()
        self._copy_bytes = 0
        table = replies_table(table_name)
        with _reported():
            memory = _copied(path) if in_memory else None
            self._engine = sql.create_engine(
                "sqlite://",
                creator=lambda: _open(path) if memory is None else memory,
                poolclass=sql.StaticPool if in_memory else sql.NullPool,
            )
            try:
                with self._engine.connect() as connection:
                    key = checked_key(connection, table)
                    wanted = sql.select(table.c.prompt_hash, table.c.n_gen_tokens, key)
                    self._catalogue = Catalogue(
                        connection.execute(wanted, execution_options={"yield_per": ROWS_PER_READ})
                    )
                    if not len(self):
                        raise DatasetError(f"table {table_name} is empty")
                    for pragma in ("page_count", "page_size") if in_memory else ():
                        number = int(connection.exec_driver_sql(f"PRAGMA {pragma}").scalar_one())
                        self._copy_bytes = self._copy_bytes * number or number
            except BaseException:
                self.close()
                raise
        self._reply = sql.select(table.c.gen_tokens).where(key == sql.bindparam("key"))

    def __len__(self) -> int:
        return len(self._catalogue)

    @property
    def size_bytes(self) -> int:
        """Memory in bytes: the catalogue, and the copy of the file if there is one."""
        return self._catalogue.size_bytes + self._copy_bytes

    def reply(
        self, prompt_ids: Sequence[int], turns: Sequence[Turn], least: int, most: int, rng: Random
    ) -> Recorded | None:
        """Returns a reply that was recorded for the prompt, else a random one; None if the file
        yields none.

        Prefers `least` to `most` tokens. Longer recorded replies come next, then shorter ones; long
        replies are cut. The one random draw comes before any wait, so replies depend on the order
        of calls only. `turns` are role and text of each message, hashed as in older files. The
        first failure (a locked or changed file, a broken row) is logged. Raises TokenizerError if
        the tokenizer cannot complete a row.
        """
        catalogue = self._catalogue
        key = catalogue.recorded(ids_hash(prompt_ids), least, most, rng)
        if key is None and turns:
            key = catalogue.recorded(text_hash(turns), least, most, rng)
        if key is None:
            key = catalogue.any(least, most, rng)
        try:
            tokens = decode(self.read(key))
        except DatasetError as error:
            if not self._has_warned:
                logger.warning(
                    "dataset %s gave no reply, sample text is used instead: %s", self.name, error
                )
            self._has_warned = True
            return None
        tokens = completed(tokens.cut(most), self._tokenizer)
        length = len(tokens)
        missing = max(0, least - length)
        return Recorded(tokens.ids, tokens.strings, missing, length + missing >= most)

    def read(self, key: int) -> object:
        """Returns `gen_tokens` of a row, or raises DatasetError.

        Other greenlets may run meanwhile.
        """
        if not self._in_memory:
            return call_off_hub(self.read_here, key)
        with self._reading:
            return self.read_here(key)

    def read_here(self, key: int) -> object:
        with _reported():
            try:
                connection = self._idle.pop()
            except IndexError:  # or another thread took it
                connection = self._engine.connect()
            try:
                row = connection.execute(self._reply, {"key": key}).first()
                if row is None:
                    raise DatasetError("a row has gone")
            except BaseException:
                connection.close()
                raise
            self._idle.append(connection)
        return row[0]

    def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        self._engine.dispose()


def _open(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(
        uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )


def _copied(path: Path) -> sqlite3.Connection:
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        with closing(_open(path)) as source:
            # Takes a read lock first: the copy itself would wait for a writer without end.
            source.execute("BEGIN").execute("SELECT count(*) FROM sqlite_master").fetchone()
            source.backup(memory)
    except BaseException:
        memory.close()
        raise
    return memory


@contextmanager
def _reported() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        raise DatasetError(str(error.orig)) from error
    except sqlite3.Error as error:
        raise DatasetError(str(error)) from error
