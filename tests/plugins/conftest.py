"""What the tests of plugins share."""

from collections.abc import Callable
from pathlib import Path

import pytest

HEAD = "from app.plugins import *\nAPI = 1\n"


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[..., str]:
    """Writes a plugin, with the usual head unless it is told another, and gives its path."""

    def write(text: str, name: str = "mine", head: str = HEAD) -> str:
        path = tmp_path / f"{name}.py"
        path.write_text(head + text, "utf-8")
        return str(path)

    return write
