"""Recorded replies: which one a prompt gets, and how much of it (simulator.md 5.10)."""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from random import Random

from gevent import monkey
from msgspec import Struct
from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Index,
    Integer,
    MetaData,
    NullPool,
    Select,
    StaticPool,
    Table,
    bindparam,
    column,
    create_engine,
    func,
    literal_column,
    select,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import UserDefinedType

from app.clock.pause import call_off_hub
from app.dataset.catalogue import Catalogue, Turn, ids_hash, text_hash
from app.dataset.tokens import DatasetError, completed, decode
from app.tokenization import Tokenizer

BUSY_S = 0.25
"""How long to wait for another process that writes to the file."""
ROWS_PER_READ = 10_000
COLUMNS = {"id": "INTEGER", "prompt_hash": "BLOB", "gen_tokens": "JSON", "n_gen_tokens": "INTEGER"}
"""Column to the type that it must be declared with."""


class Declared(UserDefinedType[object]):
    """A column type that is only declared: values come and go as SQLite has them."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **kwargs: object) -> str:
        return self.name


def replies_table(name: str) -> Table:
    """The table called `name`; its index lets a start read hashes and lengths without the replies."""
    others = [
        Column(title, Declared(declared), nullable=False)
        for title, declared in COLUMNS.items()
        if title != "id"
    ]
    index = Index(f"{name}_prompt_hash", "prompt_hash", "n_gen_tokens")
    return Table(name, MetaData(), Column("id", Integer, primary_key=True), *others, index)


def checked_key(connection: Connection, table: Table) -> ColumnElement[int]:
    """What identifies a row: its id if that is the primary key, else SQLite's own row number.

    DatasetError when the table, or a column, is missing or declared with another type.
    """
    info = func.pragma_table_info(table.name).table_valued(column("name"), column("type"), column("pk"))
    found = {row.name.lower(): row for row in connection.execute(select(info))}
    if not found:
        raise DatasetError(f"it has no table {table.name}")
    for name, declared in COLUMNS.items():
        if name not in found:
            raise DatasetError(f"table {table.name} has no column {name}")
        if (kind := found[name].type).upper() != declared:
            raise DatasetError(
                f"column {name} of table {table.name} is declared as {kind or 'nothing'}, not {declared}"
            )
    return table.c.id if found["id"].pk else literal_column("rowid", Integer)


Reply = Select[tuple[object]]


class Rows:
    """The replies of a file, which is opened read-only, or of a copy of it in memory.

    A file is read beside the event loop, on connections that are opened when first needed, so in the worker,
    and held: as many as threads read at once. Reading the copy takes less time than going to another thread.
    """

    def __init__(self, path: Path, table_name: str, in_memory: bool) -> None:
        self._in_memory = in_memory
        # A real one, which threads of a stock worker share; greenlets of one thread never meet here.
        self._reading = monkey.get_original("threading", "Lock")()
        self._idle: deque[Connection] = deque()
        self._copy_bytes = 0
        with _reported():
            memory = _copied(path) if in_memory else None
            self._engine = create_engine(
                "sqlite://",
                creator=lambda: _open(path) if memory is None else memory,
                poolclass=StaticPool if in_memory else NullPool,
            )
            try:
                with self._engine.connect() as connection:
                    self.catalogue, self._reply = _prepared(connection, table_name)
                    if in_memory:
                        self._copy_bytes = _pages_bytes(connection)
            except BaseException:
                self.close()
                raise

    @property
    def size_bytes(self) -> int:
        """Memory that is held: the catalogue, and the copy of the file if there is one."""
        return self.catalogue.size_bytes + self._copy_bytes

    def read(self, key: int) -> object:
        """Returns `gen_tokens` of a row, or raises DatasetError. Other greenlets may run meanwhile."""
        if not self._in_memory:
            return call_off_hub(self.read_here, key)
        with self._reading:
            return self.read_here(key)

    def read_here(self, key: int) -> object:
        """Reads it in the calling thread."""
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


def _prepared(connection: Connection, table_name: str) -> tuple[Catalogue, Reply]:
    """Returns the catalogue, and how to read the reply of a row. DatasetError without a usable table."""
    table = replies_table(table_name)
    key = checked_key(connection, table)
    wanted = select(table.c.prompt_hash, table.c.n_gen_tokens, key)
    found = connection.execute(wanted, execution_options={"yield_per": ROWS_PER_READ})
    catalogue = Catalogue(found)
    if not len(catalogue):
        raise DatasetError(f"table {table_name} is empty")
    return catalogue, select(table.c.gen_tokens).where(key == bindparam("key"))


def _pages_bytes(connection: Connection) -> int:
    """What SQLite holds of the file."""
    pages, size = (
        connection.exec_driver_sql(f"PRAGMA {name}").scalar_one() for name in ("page_count", "page_size")
    )
    return int(pages) * int(size)


def _open(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _copied(path: Path) -> sqlite3.Connection:
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        with closing(_open(path)) as source:
            # A reader's lock first: the copy itself would wait for a writer without end.
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
    return Dataset(str(path), Rows(path, table_name, in_memory), tokenizer)
