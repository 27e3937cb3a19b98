"""What the tests of the settings share."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def yaml_file(tmp_path: Path) -> Callable[[str], str]:
    def write(text: str) -> str:
        path = tmp_path / "settings.yaml"
        path.write_text(text, "utf-8")
        return str(path)

    return write
