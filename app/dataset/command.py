"""`python -m app dataset`: make a dataset out of a file of conversations."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from sqlalchemy.exc import DBAPIError
from tqdm import tqdm

from app.dataset.build import (
    Counts,
    Recorder,
    all_or_none,
    card,
    conversations,
    write_sqlite,
    written_as_json,
)
from app.dataset.errors import DatasetError
from app.tokenization import Tokenizer, TokenizerError
from config import ConfigError, Settings
from config.flags import Parser, as_command, whole_number
from config.installation import COMMAND
from config.loader import load

ABOUT = """\
Make a dataset (an SQLite file with recorded replies, see docs/datasets.md) out of a JSON file with
conversations in the form of ShareGPT. The settings of the server are flags here, too: the model and its
tokenizer matter.
"""


@as_command(DatasetError, TokenizerError)
def run(argv: Sequence[str], tokenizer_of: Callable[[Settings], Tokenizer]) -> int:
    """Exit status. `tokenizer_of` makes the tokenizer that the server would use."""
    options, flags = _parser().parse_beside_settings(argv)
    settings = load(flags, os.environ, warn=lambda text: print(f"warning: {text}", file=sys.stderr))
    print(_build(options, settings, tokenizer_of(settings)))
    return 0


def _parser() -> Parser:
    flags = Parser(prog=f"{COMMAND} dataset", description=ABOUT, allow_abbrev=False)
    flags.add_argument("--input", required=True, type=Path, metavar="FILE.json", help="conversations to read")
    flags.add_argument("--output", required=True, type=Path, metavar="OUT.sqlite3", help="file to make")
    flags.add_argument("--table-name", help="table to make, the setting dataset-table-name if not given")
    flags.add_argument(
        "--max-records", type=whole_number(1), default=10_000, help="conversations to take [10000]"
    )
    flags.add_argument("--debug-json", action="store_true", help="write all records as readable JSON, too")
    return flags


def _build(options: argparse.Namespace, settings: Settings, tokenizer: Tokenizer) -> str:
    """Make the files; what came of it, in one line."""
    output: Path = options.output
    table = _table_name(options, settings)
    targets = [output, output.with_suffix(".md")]
    if options.debug_json:
        targets.append(output.with_suffix(".json"))
    _check_targets(targets)
    recorder = Recorder(tokenizer)
    with _naming_files(options.input), _opened(options.input) as file:
        output.parent.mkdir(parents=True, exist_ok=True)
        with all_or_none(targets) as (sqlite, page, *debug):
            records = recorder.records(islice(conversations(file), options.max_records))
            if debug:
                with debug[0].open("w", encoding="utf-8") as readable:
                    write_sqlite(sqlite, table, written_as_json(records, readable, tokenizer))
            else:
                write_sqlite(sqlite, table, records)
            if not recorder.counts.records:
                raise DatasetError(f"it has no question of a human with a reply{_refused(recorder.counts)}")
            model, source = settings.model.model, options.input.name
            page.write_text(card(output.name, source, model, tokenizer.name, table, recorder.counts), "utf-8")
    counts = recorder.counts
    made = f"{output}: {counts.records} records of {counts.conversations} conversations"
    return made + _refused(counts)


def _table_name(options: argparse.Namespace, settings: Settings) -> str:
    name: str = options.table_name or settings.dataset.dataset_table_name
    if not name.isidentifier():
        raise ConfigError(
            f"argument --table-name: {name!r} must be a name of letters, digits and underscores"
        )
    return name


def _check_targets(targets: Sequence[Path]) -> None:
    if len(set(targets)) < len(targets):
        raise DatasetError(f"{targets[0]} must end with .sqlite3, not with {targets[0].suffix}")
    for target in targets:
        if target.exists():
            raise DatasetError(f"{target} exists already and is not written over")


def _refused(counts: Counts) -> str:
    return f"; {counts.refused} were cut short: {counts.refusal}" if counts.refused else ""


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The input, with a bar on a terminal."""
    with path.open("rb") as file:
        total = os.fstat(file.fileno()).st_size
        bar: Any = tqdm.wrapattr(file, "read", total=total, desc=path.name, disable=None)
        with bar as counted:
            yield counted


@contextmanager
def _naming_files(source: Path) -> Iterator[None]:
    """What is wrong with the files, as DatasetError that names them."""
    try:
        yield
    except DatasetError as error:
        raise DatasetError(f"{source}: {error}") from error
    except OSError as error:
        raise DatasetError(f"{error.filename or source}: {error.strerror or error}") from error
    except DBAPIError as error:
        raise DatasetError(f"the dataset cannot be written: {error.orig}") from error
