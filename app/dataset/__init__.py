"""Recorded conversations as replies.

`prepare` and `open_datasets` are called once at the start, `Datasets.of` and `Dataset.reply` for each reply.
"""

from app.dataset.errors import DatasetError
from app.dataset.routing import Datasets, open_datasets, prepare

__all__ = ["DatasetError", "Datasets", "open_datasets", "prepare"]
