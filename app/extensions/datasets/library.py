"""Recorded conversations as replies: which file answers for which model.

Call `prepare` and `open_datasets` once at the start, and `Dataset.reply` for each reply.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from app.core.engine.errors import DatasetError as DatasetError
from app.core.text.base import Tokenizer
from app.extensions.datasets.settings import DatasetSettings
from config.model_files import ALL_MODELS

if TYPE_CHECKING:
    from app.extensions.datasets.dataset import Dataset

logger = logging.getLogger(__name__)


def open_datasets(settings: DatasetSettings, tokenizer: Tokenizer) -> Mapping[str, Dataset]:
    """Returns the usable datasets of the settings by model; logs a warning for each other one.

    Call `prepare` first. Takes up to a second for a million replies, and longer for copies in
    memory. Starts nothing that a fork would lose.
    """
    datasets: dict[str, Dataset] = {}
    for model, path in settings.files.items():
        # Imported here: the library costs memory and a tenth of a second, which only servers with
        # datasets pay.
        from app.extensions.datasets.dataset import Dataset

        try:
            dataset = Dataset(
                Path(path).expanduser(),
                table_name=settings.dataset_table_name,
                in_memory=settings.dataset_in_memory,
                tokenizer=tokenizer,
            )
        except DatasetError as error:
            logger.warning("the dataset %s cannot be used: %s", path, error)
            continue
        datasets[model] = dataset
        users = f"model {model}" if model else "all models"
        logger.info("dataset %s: loaded %d replies for %s", path, len(dataset), users)
    return datasets


def dataset_of(datasets: Mapping[str, Dataset], model: str) -> Dataset | None:
    """Returns the dataset for `model`, or the one for all models."""
    return datasets.get(model, datasets.get(ALL_MODELS))


def prepare(settings: DatasetSettings) -> None:
    """Downloads the first file if it is missing and a URL is set.

    Raises:
        DatasetError: A file is missing, or its download failed.
    """
    for index, text in enumerate(settings.files.values()):
        path = Path(text).expanduser()
        if path.exists():
            continue
        if index or settings.dataset_url is None:
            raise DatasetError(f"setting dataset-path: file not found: {text}")
        from app.extensions.datasets.download import download

        download(settings.dataset_url, path, settings.dataset_sha256)
