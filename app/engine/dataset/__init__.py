"""Recorded conversations as replies: which file answers for which model.

`prepare` and `open_datasets` are called once at the start, `Dataset.reply` for each reply.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from app.engine.core.errors import DatasetError as DatasetError
from app.text.base import Tokenizer
from config.sections.reply import ALL_MODELS, DatasetSettings

if TYPE_CHECKING:
    from app.engine.dataset.dataset import Dataset

logger = logging.getLogger(__name__)


def open_datasets(settings: DatasetSettings, tokenizer: Tokenizer) -> Mapping[str, Dataset]:
    """Returns the usable datasets of the settings, by model; logs a warning for each other dataset.

    Call `prepare` first. Takes up to a second for a million replies, and longer for copies in
    memory. Starts nothing that a fork would lose.
    """
    opened: dict[str, Dataset] = {}
    for model, path in settings.files.items():
        # Imported here: the library costs memory and a tenth of a second, which only servers with
        # datasets pay.
        from app.engine.dataset.dataset import Dataset

        name, in_memory = settings.dataset_table_name, settings.dataset_in_memory
        try:
            opened[model] = Dataset(Path(path).expanduser(), name, in_memory, tokenizer)
        except DatasetError as error:
            logger.warning("dataset %s is not used: %s", path, error)
        else:
            whose = f"model {model}" if model else "all models"
            logger.info("dataset %s: %d replies for %s", path, len(opened[model]), whose)
    return opened


def dataset_of(datasets: Mapping[str, Dataset], model: str) -> Dataset | None:
    return datasets.get(model, datasets.get(ALL_MODELS))


def prepare(settings: DatasetSettings) -> None:
    """Downloads the first file if it is missing and a URL is set. Raises DatasetError."""
    for number, text in enumerate(settings.files.values()):
        path = Path(text).expanduser()
        if path.exists():
            continue
        if number or settings.dataset_url is None:
            raise DatasetError(f"setting dataset-path: there is no file {text}")
        from app.engine.dataset.download import download

        download(settings.dataset_url, path, settings.dataset_sha256)
