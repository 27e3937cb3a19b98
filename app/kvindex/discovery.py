"""Tokenizers in a directory of models, under the names of these (kv-cache specification, section 1.4)."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from gevent import monkey

TOKENIZER_FILE = "tokenizer.json"
RESCAN_S = 10.0
"""Least seconds between two scans: a directory of models may be a slow network file system."""
REPOSITORY, SNAPSHOTS = "models--", "snapshots"


class Discovery:
    """Finds the tokenizer of a model, in a native thread; looks again for a missing one, but not too often.

    Args:
        directory: where models are mounted; may be missing, or filled later.
        now: monotonic clock, seconds.
        rescan_s: least seconds between two scans.
    """

    def __init__(self, directory: Path, now: Callable[[], float], rescan_s: float = RESCAN_S) -> None:
        self._directory = directory
        self._now = now
        self._rescan_s = rescan_s
        self._found: dict[str, Path] = {}
        self._scan_from_s = now()
        # Held while the disk is read: whoever asks meanwhile waits for it, beside the event loop.
        self._scanning = monkey.get_original("threading", "Lock")()

    def find(self, model: str) -> Path | None:
        """The tokenizer file of `model`; None when it was not there at the last scan. May read the disk."""
        with self._scanning:
            if model not in self._found and self._now() >= self._scan_from_s:
                self._found = dict(discover(self._directory))
                self._scan_from_s = self._now() + self._rescan_s
            return self._found.get(model)


def discover(directory: Path) -> Iterator[tuple[str, Path]]:
    """Name and file of every tokenizer below `directory`; of several with a name, the current one comes last.

    Folders that cannot be read are passed over, links to folders not followed.
    """
    files = [
        Path(folder, TOKENIZER_FILE) for folder, _, names in os.walk(directory) if TOKENIZER_FILE in names
    ]
    for file in sorted(files, key=_age):
        yield model_name(file.parent.relative_to(directory)) or directory.name, file


def model_name(folder: Path) -> str:
    """`org/name` of `.../models--org--name/snapshots/<hash>`, else the path as it is; empty for `.`."""
    match folder.parts[-3:]:
        case (repository, snapshots, _) if repository.startswith(REPOSITORY) and snapshots == SNAPSHOTS:
            return repository.removeprefix(REPOSITORY).replace("--", "/", 1)
    return "/".join(folder.parts)


def _age(file: Path) -> tuple[bool, float, str]:
    """Sorts what `refs/main` of a repository points to last, else what was written last."""
    snapshot = file.parent
    try:
        current = snapshot.parents[1].joinpath("refs", "main").read_text("utf-8").strip() == snapshot.name
    except (OSError, ValueError, IndexError):
        current = False
    try:
        written_s = file.stat().st_mtime
    except OSError:
        written_s = 0.0
    return current, written_s, str(file)
