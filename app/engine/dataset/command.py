"""`python -m app dataset`: makes a dataset from a file of conversations."""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import ijson  # type: ignore[import-untyped]
import msgspec
from sqlalchemy import NullPool, create_engine, insert
from sqlalchemy.exc import DBAPIError
from tqdm import tqdm

from app.engine.core.errors import DatasetError
from app.engine.dataset.dataset import RecordedTokens, encode, ids_hash, replies_table
from app.text.base import Message, Tokenizer, TokenizerError, TokenizerInputError
from config import ConfigError, Settings
from config.declaration import COMMAND
from config.flags import FlagParser, as_command, whole_number
from config.loader import load

BOM = b"\xef\xbb\xbf"
HUMAN, MODEL = "human", "gpt"
LOOK_BYTES = 4096
ROWS_PER_INSERT = 1000
CARD = """\
# {title}

Recorded replies for Understudy and for llm-d's inference simulator, in the SQLite file `{file}`.

| | |
|---|---|
| made from | `{source}` |
| model | `{model}` |
| tokenizer | `{tokenizer}` |
| conversations read | {conversations} |
| records | {records} |

Each question of a human with its reply is there twice: as a text prompt, and as a chat with all that was
said before. A prompt is found by its token ids, so a server must use the same tokenizer and chat template.

## Table `{table}`

| column | type | content |
|---|---|---|
| `id` | INTEGER | row number |
| `prompt_hash` | BLOB | SHA-256 of the prompt's token ids, each as four bytes, the lowest first |
| `gen_tokens` | JSON | the reply: `{{"Tokens": [ids], "Strings": [text of each]}}` |
| `n_gen_tokens` | INTEGER | tokens of the reply |
"""
"""Page beside a dataset that documents its origin and columns."""


def conversations(file: BinaryIO) -> Iterator[object]:
    """Yields the items of the JSON array in `file` one by one.

    Raises DatasetError for anything else.
    """
    start = file.read(LOOK_BYTES)
    if not start.removeprefix(BOM).lstrip().startswith(b"["):
        raise DatasetError("it is not a JSON array of conversations")
    file.seek(len(BOM) if start.startswith(BOM) else 0)
    try:
        yield from ijson.items(file, "item", use_float=True)
    except ijson.JSONError as error:
        said = error.args[0]
        text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
        raise DatasetError(f"it is not JSON: {text.splitlines()[0]}") from error


def pairs(conversation: object) -> Iterator[tuple[str, list[Message], str]]:
    """Yields questions, messages up to each, and replies, up to the first turn of the wrong kind."""
    turns = conversation.get("conversations") if isinstance(conversation, dict) else None
    if not isinstance(turns, list):
        return
    said: list[Message] = []
    for question, reply in zip(turns[::2], turns[1::2], strict=False):
        asked, answered = _text(question, HUMAN), _text(reply, MODEL)
        if asked is None or answered is None:
            return
        said = [*said, {"role": "user", "content": asked}]
        yield asked, said, answered
        said = [*said, {"role": "assistant", "content": answered}]


def _text(turn: object, speaker: str) -> str | None:
    if not isinstance(turn, dict) or turn.get("from") != speaker:
        return None
    value = turn.get("value")
    return value if isinstance(value, str) else None


class Record(msgspec.Struct, frozen=True):
    """A future row: the reply to a prompt."""

    prompt_hash: bytes
    tokens: RecordedTokens


class RecordWriter:
    """Turns conversations into records with the ids of `tokenizer`, and counts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.conversations = self.recorded = self.refused = 0
        self.refusal = ""
        """Error text of the first refused question."""
        self._tokenizer = tokenizer

    def records(self, conversations: Iterable[object]) -> Iterator[Record]:
        """Yields two records for each reply:

        to the text, and to the chat. Raises TokenizerError.
        """
        for conversation in conversations:
            self.conversations += 1
            try:
                for question, messages, reply in pairs(conversation):
                    ids = self._tokenizer.encode(reply)
                    if not ids:
                        continue
                    tokens = RecordedTokens(ids, self._tokenizer.pieces(ids))
                    # Prompts are encoded with the server's defaults.
                    text_ids = self._tokenizer.encode(question, add_special_tokens=True)
                    chat_ids = self._tokenizer.encode_chat(messages)
                    self.recorded += 2
                    yield Record(ids_hash(text_ids), tokens)
                    yield Record(ids_hash(chat_ids), tokens)
            except TokenizerInputError as error:
                self.refused += 1
                self.refusal = self.refusal or str(error)


def write_sqlite(path: Path, table_name: str, records: Iterable[Record]) -> None:
    """Writes all records into the new file `path`, in one transaction."""
    table = replies_table(table_name)
    engine = create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(path, isolation_level=None), poolclass=NullPool
    )
    with engine.begin() as connection:
        connection.exec_driver_sql("BEGIN")
        table.create(connection)
        rows = (
            {
                "prompt_hash": it.prompt_hash,
                "gen_tokens": encode(it.tokens),
                "n_gen_tokens": len(it.tokens),
            }
            for it in records
        )
        while batch := list(islice(rows, ROWS_PER_INSERT)):
            connection.execute(insert(table), batch)


ABOUT = """\
Make a dataset (an SQLite file with recorded replies, see docs/datasets.md) out of a JSON file with
conversations in the form of ShareGPT. The settings of the server are flags here, too: the model and its
tokenizer matter.
"""


@as_command(TokenizerError)
def run(argv: Sequence[str], tokenizer_of: Callable[[Settings], Tokenizer]) -> int:
    """Returns the exit status. `tokenizer_of` makes the tokenizer that the server would use."""
    parser = FlagParser(prog=f"{COMMAND} dataset", description=ABOUT, allow_abbrev=False)
    parser.add_argument(
        "--input", required=True, type=Path, metavar="FILE.json", help="conversations to read"
    )
    parser.add_argument(
        "--output", required=True, type=Path, metavar="OUT.sqlite3", help="file to make"
    )
    parser.add_argument(
        "--table-name", help="table to make, the setting dataset-table-name if not given"
    )
    parser.add_argument(
        "--max-records", type=whole_number(1), default=10_000, help="conversations to take [10000]"
    )
    options, flags = parser.parse_beside_settings(argv)
    settings = load(flags, os.environ, warn=lambda text: print(f"warning: {text}", file=sys.stderr))
    table: str = options.table_name or settings.dataset.dataset_table_name
    if not table.isidentifier():
        raise ConfigError(
            f"argument --table-name: {table!r} must be a name of letters, digits and underscores"
        )
    output: Path = options.output
    targets = [output, output.with_suffix(".md")]
    if len(set(targets)) < len(targets):
        raise DatasetError(f"{output} must end with .sqlite3, not with {output.suffix}")
    for target in targets:
        if target.exists():
            raise DatasetError(f"{target} exists already and is not written over")
    tokenizer = tokenizer_of(settings)
    try:
        with options.input.open("rb") as source:
            print(_build(source, options, table, targets, settings.model.model, tokenizer))
    except DatasetError as error:
        raise DatasetError(f"{options.input}: {error}") from error
    except OSError as error:
        raise DatasetError(
            f"{error.filename or options.input}: {error.strerror or error}"
        ) from error
    except DBAPIError as error:
        raise DatasetError(f"the dataset cannot be written: {error.orig}") from error
    return 0


def _build(
    source: BinaryIO,
    options: argparse.Namespace,
    table: str,
    targets: Sequence[Path],
    model: str,
    tokenizer: Tokenizer,
) -> str:
    output, recorder = targets[0], RecordWriter(tokenizer)
    size = os.fstat(source.fileno()).st_size
    counted: Any = tqdm.wrapattr(source, "read", total=size, desc=options.input.name, disable=None)
    output.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=output.parent) as folder, counted as file:
        sqlite, page = parts = [Path(folder, target.name) for target in targets]
        write_sqlite(
            sqlite, table, recorder.records(islice(conversations(file), options.max_records))
        )
        refused = (
            f"; {recorder.refused} were cut short: {recorder.refusal}" if recorder.refused else ""
        )
        if not recorder.recorded:
            raise DatasetError(f"it has no question of a human with a reply{refused}")
        card = CARD.format(
            title=output.name.rpartition(".")[0] or output.name,
            file=output.name,
            source=options.input.name,
            model=model,
            tokenizer=tokenizer.name,
            table=table,
            conversations=recorder.conversations,
            records=recorder.recorded,
        )
        page.write_text(card, "utf-8")
        for part, target in zip(parts, targets, strict=True):
            os.replace(part, target)
    return (
        f"{output}: {recorder.recorded} records of {recorder.conversations} conversations{refused}"
    )
