"""Recorded conversations as replies."""

from dataclasses import dataclass

from config.fields import setting
from config.rules import is_identifier, no_empty_items


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSettings:
    """Recorded conversations as replies."""

    dataset_path: tuple[str, ...] = setting(
        (),
        help="SQLite files with replies, each as path, or as model=path for the requests of one model.",
        rule=no_empty_items(),
    )
    dataset_url: str | None = setting(
        None, help="Where the first file is downloaded from when it does not exist yet."
    )
    dataset_sha256: str | None = setting(None, help="SHA-256 (hex) that the downloaded file must have.")
    dataset_in_memory: bool = setting(False, help="Copy the files into memory at the start.")
    dataset_table_name: str = setting("llmd", help="Table that holds the replies.", rule=is_identifier())
