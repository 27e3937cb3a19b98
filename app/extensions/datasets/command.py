"""`understudy dataset`: makes a dataset from a file of conversations.

`run` is the command; `RecordWriter` turns conversations into records.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import msgspec
from sqlalchemy import NullPool, create_engine, insert
from sqlalchemy.exc import DBAPIError
from tqdm import tqdm

from app.core.engine.errors import DatasetError
from app.core.settings import load, settings_type
from app.core.text.base import Tokenizer, TokenizerError, TokenizerInputError
from app.extensions.datasets.catalogue import ids_hash
from app.extensions.datasets.conversations import read_conversation, read_conversations
from app.extensions.datasets.settings import DatasetSettings
from app.extensions.datasets.table import replies_table
from app.extensions.datasets.tokens import RecordedTokens, encode
from config import ConfigError, Settings
from config.declaration import COMMAND
from config.files import open_file
from config.flags import FlagParser, as_command, whole_number

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

Each question of a human with its reply is stored twice: as a text prompt, and as a chat with all
messages before it. A prompt is found by its token ids, so a server must use the same tokenizer and
chat template.

## Table `{table}`

| column | type | content |
|---|---|---|
| `id` | INTEGER | row number |
| `prompt_hash` | BLOB | SHA-256 of the prompt's token ids, each as four bytes, the lowest first |
| `gen_tokens` | JSON | the reply: `{{"Tokens": [ids], "Strings": [text of each]}}` |
| `n_gen_tokens` | INTEGER | tokens of the reply |
"""
"""Page beside a dataset that documents its origin and columns."""
DESCRIPTION = """\
Make a dataset (an SQLite file with recorded replies, see docs/datasets.md) from a JSON file of
conversations in ShareGPT format, or of messages with roles, as an array or as lines, perhaps
compressed with gzip. All settings of the server are also flags; model and tokenizer
affect the result.
"""


@as_command(TokenizerError)
def run(argv: Sequence[str], tokenizer_of: Callable[[Settings], Tokenizer]) -> int:
    """Runs the command and returns its exit status.

    `tokenizer_of` returns the tokenizer that the server would use.
    """
    parser = _parser()
    options, flags = parser.parse_beside_settings(argv, settings_type())
    settings = load(flags, os.environ, warn=_warn)
    table: str = options.table_name or settings.section(DatasetSettings).dataset_table_name
    if not table.isidentifier():
        raise ConfigError(
            f"argument --table-name: {table!r} must consist of letters, digits, and underscores"
        )
    job = DatasetJob(
        input=options.input,
        output=options.output,
        max_conversations=options.max_records,
        table=table,
        model=settings.model.model,
    )
    job.check_output()
    tokenizer = tokenizer_of(settings)
    try:
        with open_file(job.input) as source:
            print(job.build(source, tokenizer))
    except DatasetError as error:
        raise DatasetError(f"{job.input}: {error}") from error
    except OSError as error:
        raise DatasetError(f"{error.filename or job.input}: {error.strerror or error}") from error
    except DBAPIError as error:
        raise DatasetError(f"the dataset cannot be written: {error.orig}") from error
    return 0


def _parser() -> FlagParser:
    parser = FlagParser(prog=f"{COMMAND} dataset", description=DESCRIPTION, allow_abbrev=False)
    parser.examples = (f"{COMMAND} dataset --input talks.json --output talks.sqlite3",)
    parser.add_argument(
        "--input", required=True, type=Path, metavar="FILE.json", help="conversations to read"
    )
    parser.add_argument(
        "--output", required=True, type=Path, metavar="OUT.sqlite3", help="file to write"
    )
    parser.add_argument(
        "--table-name", help="table to create [default: the setting dataset-table-name]"
    )
    parser.add_argument(
        "--max-records",
        type=whole_number(1),
        default=10_000,
        help="maximum number of conversations [10000]",
    )
    return parser


def _warn(text: str) -> None:
    print(f"warning: {text}", file=sys.stderr)


class DatasetJob(msgspec.Struct, frozen=True, kw_only=True):
    """One dataset to write: a table of replies, and a page that documents it."""

    input: Path
    output: Path
    max_conversations: int
    table: str
    model: str

    @property
    def targets(self) -> tuple[Path, Path]:
        """The SQLite file and the page."""
        return self.output, self.output.with_suffix(".md")

    def check_output(self) -> None:
        """Raises DatasetError if the output cannot have its name, or exists."""
        output, page = self.targets
        if output == page:
            raise DatasetError(f"{output} must end with .sqlite3, not {output.suffix}")
        for target in self.targets:
            if target.exists():
                raise DatasetError(f"{target} already exists and will not be overwritten")

    def build(self, source: BinaryIO, tokenizer: Tokenizer) -> str:
        """Writes the dataset and returns a summary. A failure leaves no file behind."""
        writer = RecordWriter(tokenizer)
        size = os.fstat(source.fileno()).st_size
        progress: Any = tqdm.wrapattr(
            source, "read", total=size, desc=self.input.name, disable=None
        )
        self.output.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=self.output.parent) as folder, progress as file:
            parts = [Path(folder, target.name) for target in self.targets]
            selected = islice(read_conversations(file), self.max_conversations)
            write_sqlite(parts[0], self.table, writer.records(selected))
            rejections = writer.losses()
            if not writer.recorded:
                raise DatasetError(f"the file contains no human message with a reply{rejections}")
            parts[1].write_text(self._card(writer, tokenizer), "utf-8")
            for part, target in zip(parts, self.targets, strict=True):
                os.replace(part, target)
        return (
            f"{self.output}: {writer.recorded} records of {writer.conversations} "
            f"conversations{rejections}"
        )

    def _card(self, writer: RecordWriter, tokenizer: Tokenizer) -> str:
        return CARD.format(
            title=self.output.name.rpartition(".")[0] or self.output.name,
            file=self.output.name,
            source=self.input.name,
            model=self.model,
            tokenizer=tokenizer.name,
            table=self.table,
            conversations=writer.conversations,
            records=writer.recorded,
        )


class Record(msgspec.Struct, frozen=True):
    """A future row: the reply to a prompt."""

    prompt_hash: bytes
    tokens: RecordedTokens


class RecordWriter:
    """Turns conversations into records with the ids of `tokenizer`, and counts them."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.conversations = 0
        self.recorded = 0
        self.rejected = 0
        self.rejection = ""
        """Error text of the first question that the tokenizer rejected."""
        self.empty = 0
        """Conversations without a question that has a reply."""
        self.left_out_turns = 0
        """Turns of other conversations that are in no record."""
        self._tokenizer = tokenizer

    def records(self, conversations: Iterable[object]) -> Iterator[Record]:
        """Yields two records for each reply: to the text, and to the chat.

        Raises TokenizerError as the tokenizer does.
        """
        for conversation in conversations:
            self.conversations += 1
            parsed = read_conversation(conversation)
            if parsed.exchanges:
                self.left_out_turns += parsed.left_out
            else:
                self.empty += 1
            try:
                for question, messages, reply in parsed.exchanges:
                    ids = self._tokenizer.encode(reply)
                    if not ids:
                        self.left_out_turns += 2
                        continue
                    tokens = RecordedTokens(ids, self._tokenizer.pieces(ids))
                    # Prompts are encoded with the server's defaults.
                    text_ids = self._tokenizer.encode(question, add_special_tokens=True)
                    chat_ids = self._tokenizer.encode_chat(messages)
                    self.recorded += 2
                    yield Record(ids_hash(text_ids), tokens)
                    yield Record(ids_hash(chat_ids), tokens)
            except TokenizerInputError as error:
                self.rejected += 1
                self.rejection = self.rejection or str(error)

    def losses(self) -> str:
        """Returns the end of a sentence about what is in no record; empty if nothing is."""
        losses = ""
        if self.rejected:
            losses += f"; {self.rejected} were cut short: {self.rejection}"
        left_out: list[str] = []
        if self.empty:
            left_out.append(f"{self.empty} conversations without an answered question")
        if self.left_out_turns:
            left_out.append(f"{self.left_out_turns} turns of other conversations")
        if left_out:
            losses += f"; left out: {' and '.join(left_out)}"
        return losses


def write_sqlite(path: Path, table_name: str, records: Iterable[Record]) -> None:
    """Writes all records into the new file `path`, in one transaction."""

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None)

    table = replies_table(table_name)
    engine = create_engine("sqlite://", creator=connect, poolclass=NullPool)
    rows = map(_row, records)
    with engine.begin() as connection:
        connection.exec_driver_sql("BEGIN")
        table.create(connection)
        while batch := list(islice(rows, ROWS_PER_INSERT)):
            connection.execute(insert(table), batch)


def _row(record: Record) -> dict[str, object]:
    return {
        "prompt_hash": record.prompt_hash,
        "gen_tokens": encode(record.tokens),
        "n_gen_tokens": len(record.tokens),
    }
