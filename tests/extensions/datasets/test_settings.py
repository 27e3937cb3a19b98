"""The settings of datasets, for a process in another folder."""

from pathlib import Path

import pytest

from app.core.settings import resolve, settings_type
from config.command_line import parse
from config.environment import as_environment


def test_paths_become_absolute_behind_the_names_of_their_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(tmp_path)
    words = ["--dataset-path", "here", "m=here", "o=nowhere.sqlite3"]
    flags = parse(words, {}, settings_type())
    settings = resolve(flags, {}, lambda text: None)
    environment = as_environment(flags, settings, {})
    assert environment == {"SIM_DATASET_PATH": f"{here},m={here},o=nowhere.sqlite3"}
