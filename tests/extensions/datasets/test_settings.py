"""The settings of datasets, for a process in another folder."""

from pathlib import Path

import pytest

from tests.application import handed_over


def test_relative_dataset_paths_become_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    words = ["--dataset-path", "here", "m=here", "o=nowhere.sqlite3"]
    assert handed_over(words) == {"SIM_DATASET_PATH": f"{folder},m={folder},o=nowhere.sqlite3"}
