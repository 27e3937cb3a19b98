"""What the tests of datasets share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from app.core.text.huggingface import LocalTokenizer, default_tokenizer
from tests.extensions.datasets.files import Row, make_file

if TYPE_CHECKING:
    from app.extensions.datasets.dataset import Dataset

Opener = Callable[[Sequence[Row]], "Dataset"]


@pytest.fixture(scope="session")
def tokenizer() -> LocalTokenizer:
    return default_tokenizer()


@pytest.fixture(params=["file", "memory"])
def opened(
    request: pytest.FixtureRequest, tmp_path: Path, tokenizer: LocalTokenizer
) -> Iterator[Opener]:
    """Makes a file with rows and opens it; each test runs on files, and on copies in memory."""
    from app.extensions.datasets.dataset import Dataset

    datasets = []

    def make(rows: Sequence[Row]) -> Dataset:
        path = make_file(tmp_path / f"{len(datasets)}.sqlite3", rows)
        datasets.append(Dataset(path, "llmd", request.param == "memory", tokenizer))
        return datasets[-1]

    yield make
    for dataset in datasets:
        dataset.close()
