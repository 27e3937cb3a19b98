"""SQLite files for tests, made with sqlite3 alone and declared as the specification has it."""

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from app.extensions.datasets.catalogue import ids_hash

TABLE = """CREATE TABLE {name} (
    id INTEGER PRIMARY KEY, prompt_hash BLOB NOT NULL, gen_tokens JSON NOT NULL, n_gen_tokens INTEGER NOT NULL
)"""
PROMPT = [1, 2, 3]

Row = tuple[Any, Any, Any]
"""prompt_hash, gen_tokens, n_gen_tokens"""


def row(prompt_ids: Sequence[int], ids: Sequence[int], strings: Sequence[str] | None = None) -> Row:
    """A row as today's tool writes it; string k is `k ` if none are given."""
    texts = [f"{token_id} " for token_id in ids] if strings is None else strings
    tokens = {"Tokens": list(ids), "Strings": list(texts)}
    return ids_hash(prompt_ids), json.dumps(tokens).encode(), len(ids)


def make_file(path: Path, rows: Iterable[Row], table: str = TABLE, name: str = "llmd") -> Path:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(table.format(name=name))
        insert = f"INSERT INTO {name} (prompt_hash, gen_tokens, n_gen_tokens) VALUES (?, ?, ?)"
        connection.executemany(insert, rows)
    return path
