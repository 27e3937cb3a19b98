"""Files that can be used, files that cannot, which answers for which model, and what the settings
may say.
"""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from app.core.settings import load
from app.core.text.huggingface import LocalTokenizer
from app.extensions.datasets.library import DatasetError, dataset_of, open_datasets, prepare
from app.extensions.datasets.settings import DatasetSettings
from config import ConfigError
from tests.extensions.datasets.files import PROMPT, TABLE, make_file, row

if TYPE_CHECKING:
    from app.extensions.datasets.dataset import Dataset

ROWS = [row(PROMPT, [1, 2])]
MISDECLARED = "of table llmd must be declared as"
kinds = pytest.mark.parametrize("in_memory", [False, True], ids=["file", "memory"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "replies.sqlite3"


def trouble(path: Path, in_memory: bool, tokenizer: LocalTokenizer) -> str:
    from app.extensions.datasets.dataset import Dataset

    with pytest.raises(DatasetError) as caught:
        Dataset(path, "llmd", in_memory, tokenizer)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@kinds
@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        (
            "prompt_hash BLOB",
            "prompt_hash TEXT",
            f"prompt_hash {MISDECLARED} BLOB, but its type is TEXT",
        ),
        (
            "gen_tokens JSON",
            "gen_tokens BLOB",
            f"gen_tokens {MISDECLARED} JSON, but its type is BLOB",
        ),
        (
            "n_gen_tokens INTEGER",
            "n_gen_tokens",
            f"n_gen_tokens {MISDECLARED} INTEGER, but its type is missing",
        ),
        ("id INTEGER PRIMARY KEY", "id INT", f"id {MISDECLARED} INTEGER, but its type is INT"),
    ],
)
def test_dataset_column_of_the_wrong_type_is_rejected(
    path: Path, right: str, wrong: str, message: str, in_memory: bool, tokenizer: LocalTokenizer
) -> None:
    make_file(path, ROWS, TABLE.replace(right, wrong))
    assert message in trouble(path, in_memory, tokenizer)


@kinds
def test_invalid_dataset_is_rejected(
    path: Path, in_memory: bool, tokenizer: LocalTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    assert trouble(path.parent, in_memory, tokenizer)
    assert "unable to open" in trouble(path, in_memory, tokenizer)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE llmd (id INTEGER PRIMARY KEY, prompt_hash BLOB)")
    assert trouble(path, in_memory, tokenizer) == "table llmd has no column gen_tokens"
    path.write_bytes(b"This is not a database. " * 500)
    assert "not a database" in trouble(path, in_memory, tokenizer)
    path.write_bytes(b"")
    assert "the file has no table" in trouble(path, in_memory, tokenizer)
    make_file(path, [])
    assert "empty" in trouble(path, in_memory, tokenizer)
    path.unlink()
    whole = make_file(path, [row([number], [number] * 50) for number in range(300)]).read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert trouble(path, in_memory, tokenizer)
    gc.collect()
    assert caplog.messages == [], "all are closed"


@pytest.fixture
def locked(path: Path) -> Iterator[Path]:
    make_file(path, ROWS)
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield path


@kinds
@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("a b?c#d%20e.sqlite3", TABLE),
        ("-Grüße &=", TABLE),
        ("x", TABLE.replace(" PRIMARY KEY", "").lower()),
        ("x", TABLE.replace("id INTEGER PRIMARY KEY", "id INTEGER NOT NULL PRIMARY KEY")),
    ],
)
def test_dataset_file_may_have_any_name_and_no_primary_key(
    tmp_path: Path, name: str, table: str, in_memory: bool, tokenizer: LocalTokenizer
) -> None:
    from app.extensions.datasets.dataset import Dataset

    path = make_file(tmp_path / name, [row([1], [1, 1]), *ROWS], table, "talks")
    assert trouble(path, in_memory, tokenizer) == "the file has no table llmd"
    with closing(Dataset(path, "talks", in_memory, tokenizer)) as dataset:
        recorded = dataset.reply(PROMPT, (), min_tokens=1, max_tokens=5, rng=Random(1))
    assert recorded is not None and recorded.ids == [1, 2]


def test_unusable_dataset_logs_one_warning(
    locked: Path, tokenizer: LocalTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    datasets = open_datasets(DatasetSettings(dataset_path=(str(locked),)), tokenizer)
    assert not datasets and dataset_of(datasets, "any") is None
    assert caplog.messages == [f"the dataset {locked} cannot be used: database is locked"]


def test_error_for_a_missing_dataset_file_names_the_path(
    path: Path,
) -> None:
    with pytest.raises(DatasetError, match=f"setting dataset-path: file not found: {path}"):
        prepare(DatasetSettings(dataset_path=(str(path),)))
    make_file(path, ROWS)
    missing = f"tiny={path}.other"
    with pytest.raises(DatasetError, match="file not found"):
        prepare(
            DatasetSettings(dataset_path=(str(path), missing), dataset_url="http://127.0.0.1:1/x")
        )


def reply_texts(datasets: Mapping[str, Dataset], model: str) -> list[str] | None:
    dataset = dataset_of(datasets, model)
    recorded = (
        None
        if dataset is None
        else dataset.reply(PROMPT, (), min_tokens=1, max_tokens=5, rng=Random(1))
    )
    return None if recorded is None else list(recorded.texts)


def test_dataset_file_of_a_model_takes_precedence_over_the_default_file(
    tmp_path: Path, tokenizer: LocalTokenizer
) -> None:
    general, own_file = (
        make_file(tmp_path / name, [row(PROMPT, [1], [name])]) for name in ("general", "own")
    )
    for paths, replies in (
        ((f"org/tiny={own_file}", str(general)), (["own"], ["general"])),
        ((f"org/tiny={own_file}",), (["own"], None)),
    ):
        datasets = open_datasets(DatasetSettings(dataset_path=paths), tokenizer)
        assert (
            datasets
            and (reply_texts(datasets, "org/tiny"), reply_texts(datasets, "other")) == replies
        )
        for dataset in datasets.values():
            dataset.close()
    own_file.write_bytes(b"broken" * 1000)
    settings = DatasetSettings(dataset_path=(f"org/tiny={own_file}", str(general)))
    datasets = open_datasets(settings, tokenizer)
    assert reply_texts(datasets, "org/tiny") == ["general"]
    for dataset in datasets.values():
        dataset.close()


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (["--dataset-path", "tiny="], "must name a file in every item"),
        (["--dataset-path", "a", "=b"], "must not name two files for the same model"),
        (["--dataset-path", "tiny=a", "tiny=b"], "must not name two files for the same model"),
        (
            ["--dataset-path", "a", "--dataset-url", "ftp://b"],
            "must begin with http:// or https://",
        ),
        (["--dataset-path", "a", "--dataset-sha256", "abc"], "must be 64 hexadecimal digits"),
        (["--dataset-url", "http://b"], "must be used together with dataset-path"),
        (["--dataset-path", "a", "--mode", "echo"], "must be empty in mode echo"),
        (
            ["--dataset-path", "a", "--dataset-table-name", "a b"],
            "letters, digits, and underscores",
        ),
    ],
)
def test_invalid_dataset_path_settings_prevent_startup(flags: list[str], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        load(flags, {})


def test_first_equals_sign_separates_the_model_from_the_path() -> None:
    assert DatasetSettings(dataset_path=("a", "tiny = b=c")).files == {"": "a", "tiny": "b=c"}
    assert DatasetSettings(dataset_path=("=a=b",)).files == {"": "a=b"}
    flags = ["--dataset-path", "a", "--dataset-url", "HTTPS://b/c", "--dataset-sha256", "aB" * 32]
    assert load(flags, {}).section(DatasetSettings).dataset_url == "HTTPS://b/c"
