"""The table of recorded replies in SQLite: declaration, check and read-only connections."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import sqlalchemy as sql
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import UserDefinedType

from app.core.engine.errors import DatasetError

LOCK_WAIT_SECONDS = 0.25
"""Maximum wait for another process's lock on the file."""
COLUMNS = {"id": "INTEGER", "prompt_hash": "BLOB", "gen_tokens": "JSON", "n_gen_tokens": "INTEGER"}
"""Required columns, each with its declared type."""


class DeclaredType(UserDefinedType[object]):
    """A column type for declarations only: values stay as SQLite stores and returns them."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **kwargs: object) -> str:
        """Returns the type as the declaration has it."""
        return self.name


def replies_table(name: str) -> sql.Table:
    """Defines the table `name`.

    Its index lets a server start without reading the replies.
    """
    columns = []
    for title, declared in COLUMNS.items():
        if title != "id":
            columns.append(sql.Column(title, DeclaredType(declared), nullable=False))
    index = sql.Index(f"{name}_prompt_hash", "prompt_hash", "n_gen_tokens")
    key = sql.Column("id", sql.Integer, primary_key=True)
    return sql.Table(name, sql.MetaData(), key, *columns, index)


def check_key(connection: sql.Connection, table: sql.Table) -> sql.ColumnElement[int]:
    """Returns the key column: `id` if it is the primary key, else `rowid`.

    Raises:
        DatasetError: The table or one of its columns is missing.
    """
    table_info = sql.func.pragma_table_info(table.name).table_valued(
        sql.column("name"), sql.column("type"), sql.column("pk")
    )
    columns = {row.name.lower(): row for row in connection.execute(sql.select(table_info))}
    if not columns:
        raise DatasetError(f"the file has no table {table.name}")
    for name, declared in COLUMNS.items():
        if name not in columns:
            raise DatasetError(f"table {table.name} has no column {name}")
        column_type = columns[name].type
        if column_type.upper() != declared:
            raise DatasetError(
                f"column {name} of table {table.name} must be declared as {declared}, "
                f"but its type is {column_type or 'missing'}"
            )
    if columns["id"].pk:
        return table.c.id
    return sql.literal_column("rowid", sql.Integer)


def open_read_only(path: Path) -> sqlite3.Connection:
    """Opens the file `path`. Raises sqlite3.Error."""
    uri = f"{path.absolute().as_uri()}?mode=ro"
    return sqlite3.connect(
        uri, uri=True, timeout=LOCK_WAIT_SECONDS, isolation_level=None, check_same_thread=False
    )


def copy_to_memory(path: Path) -> sqlite3.Connection:
    """Returns a copy of the file `path` in memory. Raises sqlite3.Error."""
    memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    try:
        with closing(open_read_only(path)) as source:
            # Takes a read lock first: the copy itself would wait for a writer without end.
            source.execute("BEGIN").execute("SELECT count(*) FROM sqlite_master").fetchone()
            source.backup(memory)
    except BaseException:
        memory.close()
        raise
    return memory


@contextmanager
def dataset_errors() -> Iterator[None]:
    """Turns errors of SQLite into DatasetError."""
    try:
        yield
    except DBAPIError as error:
        raise DatasetError(str(error.orig)) from error
    except sqlite3.Error as error:
        raise DatasetError(str(error)) from error
