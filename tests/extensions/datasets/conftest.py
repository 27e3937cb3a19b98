"""What the tests of datasets share."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from app.core.text.huggingface import LocalTokenizer, default_tokenizer
from app.extensions.datasets.dataset import Dataset
from tests.extensions.datasets.files import Row, make_file

Opener = Callable[[Sequence[Row]], Dataset]


@pytest.fixture(scope="session")
def tokenizer() -> LocalTokenizer:
    return default_tokenizer()


@pytest.fixture(params=["file", "memory"])
def opened(
    request: pytest.FixtureRequest, tmp_path: Path, tokenizer: LocalTokenizer
) -> Iterator[Opener]:
    """Makes a file with rows and opens it; each test runs on files, and on copies in memory."""
    datasets = []

    def make(rows: Sequence[Row]) -> Dataset:
        path = make_file(tmp_path / f"{len(datasets)}.sqlite3", rows)
        datasets.append(Dataset(path, "llmd", request.param == "memory", tokenizer))
        return datasets[-1]

    yield make
    for dataset in datasets:
        dataset.close()
