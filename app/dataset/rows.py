"""Rows of a dataset, read by key: from a file, or from a copy of it in memory."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Protocol

from gevent import monkey
from sqlalchemy import Connection, NullPool, Select, StaticPool, bindparam, create_engine, select
from sqlalchemy.exc import DBAPIError

from app.clock.offload import call_off_hub
from app.dataset.catalogue import Catalogue
from app.dataset.errors import DatasetError
from app.dataset.schema import checked_key, replies_table

BUSY_S = 0.25
"""How long to wait for another process that writes to the file."""
ROWS_PER_READ = 10_000


class Rows(Protocol):
    """The replies of a dataset."""

    catalogue: Catalogue

    def read(self, key: int) -> object:
        """The value of `gen_tokens` in the row `key`. DatasetError when it cannot be had."""

    def close(self) -> None:
        """Close what is open."""


class FileRows:
    """Rows of a file, which is opened read-only and read beside the event loop.

    Only the catalogue is made here. Connections are opened when first needed, so in the worker, and held: as
    many as threads read at once.
    """

    def __init__(self, path: Path, table_name: str) -> None:
        self._engine = create_engine("sqlite://", creator=lambda: _open(path), poolclass=NullPool)
        self._idle: deque[Connection] = deque()
        with _reported(), self._engine.connect() as connection:
            self.catalogue, self._reply = _prepared(connection, table_name)

    def read(self, key: int) -> object:
        """See `Rows.read`. Other greenlets run meanwhile."""
        return call_off_hub(self.read_here, key)

    def read_here(self, key: int) -> object:
        """See `Rows.read`, in the calling thread."""
        with _reported():
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._engine.connect()
            try:
                value = _value(connection, self._reply, key)
            except BaseException:
                connection.close()
                raise
            self._idle.append(connection)
        return value

    def close(self) -> None:
        """See `Rows.close`."""
        while self._idle:
            self._idle.pop().close()


class MemoryRows:
    """Rows of a copy in memory, made here; reading one takes less time than going to another thread."""

    def __init__(self, path: Path, table_name: str) -> None:
        with _reported():
            memory = _copied(path)
            # A real one, which threads of a stock worker share; greenlets of one thread never meet here.
            self._reading = monkey.get_original("threading", "Lock")()
            engine = create_engine("sqlite://", creator=lambda: memory, poolclass=StaticPool)
            self._connection = engine.connect()
            try:
                self.catalogue, self._reply = _prepared(self._connection, table_name)
            except BaseException:
                self.close()
                raise

    def read(self, key: int) -> object:
        """See `Rows.read`."""
        with _reported(), self._reading:
            return _value(self._connection, self._reply, key)

    def close(self) -> None:
        """See `Rows.close`."""
        self._connection.close()
        self._connection.engine.dispose()


Reply = Select[tuple[object]]


def _prepared(connection: Connection, table_name: str) -> tuple[Catalogue, Reply]:
    """The catalogue, and how to read the reply of a row. DatasetError when there is no usable table."""
    table = replies_table(table_name)
    key = checked_key(connection, table)
    wanted = select(table.c.prompt_hash, table.c.n_gen_tokens, key)
    found = connection.execute(wanted, execution_options={"yield_per": ROWS_PER_READ})
    catalogue = Catalogue(found)
    if not len(catalogue):
        raise DatasetError(f"table {table_name} is empty")
    return catalogue, select(table.c.gen_tokens).where(key == bindparam("key"))


def _value(connection: Connection, reply: Reply, key: int) -> object:
    row = connection.execute(reply, {"key": key}).first()
    if row is None:
        raise DatasetError("a row has gone")
    return row[0]


def _open(path: Path) -> sqlite3.Connection:
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)


def _copied(path: Path) -> sqlite3.Connection:
    """A copy of the whole file."""
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
    """What SQLite has to say, as DatasetError."""
    try:
        yield
    except DBAPIError as error:
        raise DatasetError(str(error.orig)) from error
    except sqlite3.Error as error:
        raise DatasetError(str(error)) from error
