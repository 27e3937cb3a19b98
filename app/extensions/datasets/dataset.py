"""Recorded replies: selects one for a prompt and cuts it to length."""

from __future__ import annotations

import logging
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import sqlalchemy as sql
from gevent import monkey

from app.core.base.clock.pause import call_off_hub
from app.core.engine.errors import DatasetError
from app.core.engine.request import RecordedReply
from app.core.text.base import Tokenizer
from app.extensions.datasets.catalogue import Catalogue, Turn, ids_hash, text_hash
from app.extensions.datasets.table import (
    check_key,
    copy_to_memory,
    dataset_errors,
    open_read_only,
    replies_table,
)
from app.extensions.datasets.tokens import complete, decode

ROWS_PER_READ = 10_000

logger = logging.getLogger(__name__)


def accept() -> None:
    """Accepts a prompt that is not in the dataset."""


class Dataset:
    """The replies of a file, opened read-only, or of its copy in memory.

    A file is read outside the event loop's thread. Its connections open on first use, hence in the
    worker, and stay open: as many as threads read at once. Reading the copy is faster than
    switching threads.

    Raises:
        DatasetError: The file is locked, broken or has no such table.
    """

    def __init__(self, path: Path, table_name: str, in_memory: bool, tokenizer: Tokenizer) -> None:
        self.name = str(path)
        self._tokenizer = tokenizer
        self._has_warned = False
        self._memory: sqlite3.Connection | None = None
        self._memory_bytes = 0
        # A real lock, shared by the threads of a stock worker; greenlets of one thread never
        # contend for it.
        self._memory_lock = monkey.get_original("threading", "Lock")()
        self._idle: deque[sql.Connection] = deque()
        """Open connections that no thread uses."""
        table = replies_table(table_name)

        def connect() -> sqlite3.Connection:
            if self._memory is not None:
                return self._memory
            return open_read_only(path)

        with dataset_errors():
            if in_memory:
                self._memory = copy_to_memory(path)
            self._engine = sql.create_engine(
                "sqlite://",
                creator=connect,
                poolclass=sql.StaticPool if in_memory else sql.NullPool,
            )
            try:
                with self._engine.connect() as connection:
                    key = self._read_catalogue(connection, table)
            except BaseException:
                self.close()
                raise
        self._select_reply = sql.select(table.c.gen_tokens).where(key == sql.bindparam("key"))

    def __len__(self) -> int:
        return len(self._catalogue)

    @property
    def size_bytes(self) -> int:
        """Memory in bytes: the catalogue, and the copy of the file if there is one."""
        return self._catalogue.size_bytes + self._memory_bytes

    def reply(
        self,
        prompt_ids: Sequence[int],
        turns: Sequence[Turn],
        min_tokens: int,
        max_tokens: int,
        rng: Random,
        on_miss: Callable[[], None] = accept,
    ) -> RecordedReply | None:
        """Returns a reply that was recorded for the prompt, else a random one.

        Prefers `min_tokens` to `max_tokens` tokens. Longer recorded replies come next, then shorter
        ones; long replies are cut. The one random draw comes before any wait, so replies depend on
        the order of calls only. `turns` are role and text of each message, hashed as in older
        files. Returns None if the file yields no reply (it is locked or has changed, or the row is
        broken), and logs the first such failure. `on_miss` is called before a random reply is
        drawn.

        Raises:
            TokenizerError: The tokenizer cannot complete a row.
            Exception: that of `on_miss`.
        """
        catalogue = self._catalogue
        key = catalogue.find_recorded(ids_hash(prompt_ids), min_tokens, max_tokens, rng)
        if key is None and turns:
            key = catalogue.find_recorded(text_hash(turns), min_tokens, max_tokens, rng)
        if key is None:
            on_miss()
            key = catalogue.find_any(min_tokens, max_tokens, rng)
        try:
            tokens = decode(self.read(key))
        except DatasetError as error:
            if not self._has_warned:
                logger.warning(
                    "dataset %s: sample text is used, because a reply cannot be read: %s",
                    self.name,
                    error,
                )
            self._has_warned = True
            return None
        tokens = complete(tokens.cut(max_tokens), self._tokenizer)
        length = len(tokens)
        missing = max(0, min_tokens - length)
        reached_limit = length + missing >= max_tokens
        return RecordedReply(tokens.ids, tokens.strings, missing, reached_limit)

    def read(self, key: int) -> object:
        """Returns `gen_tokens` of a row. Other greenlets may run meanwhile.

        Raises DatasetError.
        """
        if self._memory is None:
            return call_off_hub(self.read_here, key)
        with self._memory_lock:
            return self.read_here(key)

    def read_here(self, key: int) -> object:
        """Returns `gen_tokens` of a row, read in this thread. Raises DatasetError."""
        with dataset_errors():
            try:
                connection = self._idle.pop()
            except IndexError:  # or another thread took it
                connection = self._engine.connect()
            try:
                row = connection.execute(self._select_reply, {"key": key}).first()
                if row is None:
                    raise DatasetError("a row was deleted")
            except BaseException:
                connection.close()
                raise
            self._idle.append(connection)
        return row[0]

    def close(self) -> None:
        """Closes all connections."""
        while self._idle:
            self._idle.pop().close()
        self._engine.dispose()

    def _read_catalogue(
        self, connection: sql.Connection, table: sql.Table
    ) -> sql.ColumnElement[int]:
        """Reads hashes and lengths of all rows, and returns the key column."""
        key = check_key(connection, table)
        query = sql.select(table.c.prompt_hash, table.c.n_gen_tokens, key)
        rows = connection.execute(query, execution_options={"yield_per": ROWS_PER_READ})
        self._catalogue = Catalogue(rows)
        if not len(self):
            raise DatasetError(f"table {table.name} is empty")
        if self._memory is not None:
            page_count = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            page_bytes = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
            self._memory_bytes = int(page_count) * int(page_bytes)
        return key
