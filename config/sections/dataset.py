"""Recorded conversations as replies."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from config.fields import setting
from config.rules import Rule, is_identifier

ALL_MODELS = ""
"""Stands for the model in an item that names none."""
HEX = re.compile("[0-9a-fA-F]{64}")


def _route(item: str) -> tuple[str, str]:
    """Model and path of an item of dataset-path."""
    model, equals, path = item.partition("=")
    return (model.strip(), path.strip()) if equals else (ALL_MODELS, item.strip())


def _names_files(items: Sequence[str]) -> bool:
    return all(path for _, path in map(_route, items))


def _names_models_once(items: Sequence[str]) -> bool:
    return len({model for model, _ in map(_route, items)}) == len(items)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSettings:
    """Recorded conversations as replies."""

    dataset_path: tuple[str, ...] = setting(
        (),
        path=True,
        help="SQLite files with replies, each as path, or as model=path for the requests of one model.",
        rule=(
            Rule("must name a file in every item", lambda items, room: _names_files(items)),
            Rule("must not name two files for the same model", lambda items, room: _names_models_once(items)),
        ),
    )
    dataset_url: str | None = setting(
        None,
        help="Where the first file is downloaded from when it does not exist yet.",
        rule=Rule(
            "must begin with http:// or https://",
            lambda url, room: url.lower().startswith(("http://", "https://")),
        ),
    )
    dataset_sha256: str | None = setting(
        None,
        help="SHA-256 (hex) that the downloaded file must have.",
        rule=Rule("must be 64 hexadecimal digits", lambda text, room: bool(HEX.fullmatch(text))),
    )
    dataset_in_memory: bool = setting(False, help="Copy the files into memory at the start.")
    dataset_table_name: str = setting("llmd", help="Table that holds the replies.", rule=is_identifier())

    @property
    def files(self) -> dict[str, str]:
        """Model (`ALL_MODELS` for every other one) to path, in the order of dataset-path."""
        return dict(map(_route, self.dataset_path))
