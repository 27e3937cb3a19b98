"""Settings of recorded conversations."""

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta

from config import Settings
from config.declaration import SIMULATED, Section, SettingRule
from config.model_files import ModelFiles, model_and_path

DatasetUrl = Annotated[
    str, Meta(pattern="^(?i:https?)://", description="must begin with http:// or https://")
]
Sha256 = Annotated[
    str, Meta(pattern=r"\A[0-9a-fA-F]{64}\Z", description="must be 64 hexadecimal digits")
]
Identifier = Annotated[
    str,
    Meta(pattern=r"\A[^\W\d]\w*\Z", description="must consist of letters, digits, and underscores"),
]
"""Name of a SQL table that needs no quotes."""
ONE_FILE_PER_MODEL = "must not name two files for the same model"


def _one_file_per_model(items: tuple[str, ...], section: object) -> str:
    """Returns the flaw of items with two files for a model; empty for valid items."""
    models = {model_and_path(item)[0] for item in items}
    if len(models) < len(items):
        return ONE_FILE_PER_MODEL
    return ""


class DatasetSettings(Section, frozen=True, kw_only=True):
    """Replies from datasets of conversations."""

    dataset_path: Annotated[
        ModelFiles,
        SIMULATED,
        SettingRule(ONE_FILE_PER_MODEL, _one_file_per_model),
    ] = ()
    """SQLite files that contain replies. Specify each file as PATH, or as MODEL=PATH to use it for
    only one model."""
    dataset_url: Annotated[DatasetUrl | None, SIMULATED] = None
    """URL from which to download the first file in dataset-path if that file does not exist."""
    dataset_sha256: Sha256 | None = None
    """Expected SHA-256 hash of the downloaded file, in hexadecimal."""
    dataset_in_memory: Annotated[bool, SIMULATED] = False
    """Load the dataset files into memory at startup."""
    dataset_miss: Annotated[Literal["random", "error"], SIMULATED] = "random"
    """Action taken when a prompt is not in the dataset. If the value is random, a reply to another
    prompt is sent. If the value is error, the request is rejected with status 400."""
    dataset_table_name: Identifier = "llmd"
    """Name of the table that contains the replies."""

    @property
    def files(self) -> dict[str, str]:
        """Model (`ALL_MODELS` for all other models) -> path, in the order of dataset-path."""
        return dict(map(model_and_path, self.dataset_path))

    def conflicts(self, settings: Settings) -> Iterator[tuple[str, str]]:
        """Yields the conflicts with the mode, and of a URL without a file."""
        if self.dataset_path and settings.reply.mode == "echo":
            yield "dataset-path", "must be empty in mode echo"
        if self.dataset_url is not None and not self.dataset_path:
            yield "dataset-url", "must be used together with dataset-path"
        if self.dataset_miss != "random" and not self.dataset_path:
            yield "dataset-miss", "must be used together with dataset-path"
