"""Recorded conversations as replies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from app.core.extensions import Extension, Position
from app.extensions.datasets.settings import DatasetSettings

if TYPE_CHECKING:
    from random import Random

    from app.core.engine.request import EngineRequest, RecordedReply
    from app.core.extensions import ServerParts
    from app.core.server.middleware.stack import Middleware
    from app.extensions.datasets.dataset import Dataset
    from app.extensions.datasets.misses import DatasetMisses
    from config import Settings as AllSettings


class DatasetReplies:
    """See `app.core.engine.simulated.model.RecordedReplies`."""

    def __init__(self, datasets: Mapping[str, Dataset], misses: DatasetMisses) -> None:
        self._datasets = datasets
        self._misses = misses

    def reply(
        self, request: EngineRequest, *, min_tokens: int, max_tokens: int, rng: Random
    ) -> RecordedReply | None:
        """Returns a reply from the dataset of the request's model; None without one.

        Raises:
            ApiError: 400, the prompt is not in the dataset, and misses are rejected.
        """
        from app.extensions.datasets.library import dataset_of

        dataset = dataset_of(self._datasets, request.model)
        if dataset is None:
            return None
        return dataset.reply(
            request.prompt_ids,
            request.turns,
            min_tokens,
            max_tokens,
            rng,
            on_miss=partial(self._misses.note, dataset.name),
        )


class Datasets(Extension):
    """Replies from files of recorded conversations, one file for each model or one for all."""

    name = "datasets"
    Settings = DatasetSettings

    def __init__(self, parts: ServerParts) -> None:
        from app.extensions.datasets.library import open_datasets, prepare

        super().__init__(parts)
        section = parts.settings.section(DatasetSettings)
        prepare(section)  # a server without our arbiter has not called `prepare`
        self._datasets = open_datasets(section, parts.tokenizer)
        self.reads_messages = bool(self._datasets)

    @classmethod
    def is_enabled(cls, settings: AllSettings) -> bool:
        """Returns whether a dataset is set. An encoder generates no text."""
        return bool(settings.section(DatasetSettings).files) and not settings.model.mm_encoder_only

    @classmethod
    def prepare(cls, settings: AllSettings) -> None:
        """Downloads the dataset if its file is missing. Raises DatasetError."""
        from app.extensions.datasets.library import prepare

        prepare(settings.section(DatasetSettings))

    def recorded_replies(self) -> DatasetReplies | None:
        """Returns the replies of all datasets; None if no file can be used."""
        if not self._datasets:
            return None
        from app.extensions.datasets.misses import DatasetMisses

        section = self.parts.settings.section(DatasetSettings)
        misses = DatasetMisses(rejects=section.dataset_miss == "error")
        return DatasetReplies(self._datasets, misses)

    def middleware(self) -> Mapping[Position, Sequence[Middleware]]:
        """Returns the middleware that marks answers to prompts that are not in the dataset."""
        if not self._datasets:
            return {}
        from app.extensions.datasets.misses import MissHeader

        return {Position.INNERMOST: [MissHeader()]}

    def keeps_fast_path(self, settings: AllSettings) -> bool:
        """Returns whether there is no dataset: it looks up the texts of messages."""
        return not self._datasets
