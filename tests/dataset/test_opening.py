"""Files that can be used, files that cannot, and what the server does about them."""

import gc
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from app.engine.dataset import DatasetError, open_datasets, prepare
from app.engine.dataset.dataset import open_dataset
from app.text import LocalTokenizer
from config.settings import DatasetSettings
from tests.dataset.files import PROMPT, TABLE, make_file, row

ROWS = [row(PROMPT, [1, 2])]
kinds = pytest.mark.parametrize("in_memory", [False, True], ids=["file", "memory"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "replies.sqlite3"


def trouble(path: Path, in_memory: bool, tokenizer: LocalTokenizer) -> str:
    """Why the file cannot be used."""
    with pytest.raises(DatasetError) as caught:
        open_dataset(path, "llmd", in_memory, tokenizer)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@kinds
@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        ("prompt_hash BLOB", "prompt_hash TEXT", "prompt_hash of table llmd is declared as TEXT, not BLOB"),
        ("gen_tokens JSON", "gen_tokens BLOB", "gen_tokens of table llmd is declared as BLOB, not JSON"),
        (
            "n_gen_tokens INTEGER",
            "n_gen_tokens",
            "n_gen_tokens of table llmd is declared as nothing, not INTEGER",
        ),
        ("id INTEGER PRIMARY KEY", "id INT", "id of table llmd is declared as INT, not INTEGER"),
    ],
)
def test_a_column_of_another_type_is_told(
    path: Path, right: str, wrong: str, told: str, in_memory: bool, tokenizer: LocalTokenizer
) -> None:
    make_file(path, ROWS, TABLE.replace(right, wrong))
    assert told in trouble(path, in_memory, tokenizer)


@kinds
def test_a_missing_column_is_told(path: Path, in_memory: bool, tokenizer: LocalTokenizer) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE llmd (id INTEGER PRIMARY KEY, prompt_hash BLOB)")
    assert trouble(path, in_memory, tokenizer) == "table llmd has no column gen_tokens"


@kinds
def test_a_missing_table_is_told(path: Path, in_memory: bool, tokenizer: LocalTokenizer) -> None:
    make_file(path, ROWS, name="conversations")
    assert trouble(path, in_memory, tokenizer) == "it has no table llmd"
    with closing(open_dataset(path, "conversations", in_memory, tokenizer)) as dataset:
        assert len(dataset) == 1


@kinds
def test_a_file_that_cannot_be_used_is_closed_without_a_word(
    path: Path, in_memory: bool, tokenizer: LocalTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    make_file(path, [])
    trouble(path, in_memory, tokenizer)
    gc.collect()
    assert caplog.messages == []


@kinds
def test_what_is_no_database_is_told(path: Path, in_memory: bool, tokenizer: LocalTokenizer) -> None:
    path.write_bytes(b"This is not a database. " * 500)
    assert "not a database" in trouble(path, in_memory, tokenizer)
    path.write_bytes(b"")
    assert "no table" in trouble(path, in_memory, tokenizer)


@kinds
def test_a_torn_file_is_told(path: Path, in_memory: bool, tokenizer: LocalTokenizer) -> None:
    whole = make_file(path, [row([number], [number] * 50) for number in range(300)]).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert trouble(path, in_memory, tokenizer)


@kinds
def test_what_cannot_be_opened_is_told(tmp_path: Path, in_memory: bool, tokenizer: LocalTokenizer) -> None:
    assert trouble(tmp_path, in_memory, tokenizer)
    assert "unable to open" in trouble(tmp_path / "nowhere", in_memory, tokenizer)


@pytest.fixture
def locked(path: Path) -> Iterator[Path]:
    """A file that another connection has for itself."""
    make_file(path, ROWS)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield path


@kinds
def test_a_locked_file_is_told(locked: Path, in_memory: bool, tokenizer: LocalTokenizer) -> None:
    assert trouble(locked, in_memory, tokenizer) == "database is locked"


@kinds
@pytest.mark.parametrize("name", ["a b?c#d%20e.sqlite3", "Grüße &=.sqlite3", "-x"])
def test_a_file_may_have_any_name(
    tmp_path: Path, name: str, in_memory: bool, tokenizer: LocalTokenizer
) -> None:
    with closing(open_dataset(make_file(tmp_path / name, ROWS), "llmd", in_memory, tokenizer)) as dataset:
        assert dataset.reply(PROMPT, (), 1, 5, Random(1)) is not None


@kinds
@pytest.mark.parametrize(
    "table",
    [
        TABLE.replace(" PRIMARY KEY", ""),
        TABLE.lower(),
        TABLE.replace("id INTEGER PRIMARY KEY", "id INTEGER NOT NULL PRIMARY KEY"),
    ],
)
def test_a_table_without_a_primary_key_or_in_small_letters_can_be_used(
    path: Path, table: str, in_memory: bool, tokenizer: LocalTokenizer
) -> None:
    make_file(path, [row([1], [1, 1]), row(PROMPT, [1, 2])], table)
    with closing(open_dataset(path, "llmd", in_memory, tokenizer)) as dataset:
        found = dataset.reply(PROMPT, (), 1, 5, Random(1))
    assert found is not None and found.ids == [1, 2]


def test_an_unusable_file_is_one_warning_and_no_dataset(
    locked: Path, tokenizer: LocalTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        datasets = open_datasets(DatasetSettings(dataset_path=(str(locked),)), tokenizer)
    assert not datasets and datasets.of("any") is None
    assert caplog.messages == [f"dataset {locked} is not used: database is locked"]


def test_a_file_that_is_not_there_stops_the_start(path: Path) -> None:
    with pytest.raises(DatasetError, match=f"setting dataset-path: there is no file {path}"):
        prepare(DatasetSettings(dataset_path=(str(path),)))


def test_only_the_first_file_can_be_downloaded(path: Path) -> None:
    make_file(path, ROWS)
    missing = f"tiny={path}.other"
    with pytest.raises(DatasetError, match="there is no file"):
        prepare(DatasetSettings(dataset_path=(str(path), missing), dataset_url="http://127.0.0.1:1/x"))
