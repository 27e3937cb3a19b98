"""The table of recorded replies (simulator.md 5.10)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Index,
    Integer,
    MetaData,
    Table,
    column,
    func,
    literal_column,
    select,
)
from sqlalchemy.types import UserDefinedType

from app.dataset.errors import DatasetError

COLUMNS = {"id": "INTEGER", "prompt_hash": "BLOB", "gen_tokens": "JSON", "n_gen_tokens": "INTEGER"}
"""Column to the type that it must be declared with."""


class Declared(UserDefinedType[Any]):
    """A column type that is only declared: values come and go as SQLite has them."""

    cache_ok = True

    def __init__(self, name: str) -> None:
        self.name = name

    def get_col_spec(self, **kwargs: Any) -> str:
        """The declared type."""
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
        if (told := found[name].type).upper() != declared:
            raise DatasetError(
                f"column {name} of table {table.name} is declared as {told or 'nothing'}, not {declared}"
            )
    return table.c.id if found["id"].pk else literal_column("rowid", Integer)
