"""Fixtures and texts that the tests of plugins share."""

from collections.abc import Callable
from pathlib import Path
from textwrap import indent

import pytest

HEAD = "from app.plugins import *\nAPI = 2\n"


def plugin_module(body: str, name: str = "mine", preamble: str = "") -> str:
    """The text of a module with a plugin, whose class has `body`."""
    members = indent(f"name = {name!r}\n{body}", "    ")
    return f"{HEAD}{preamble}\nclass TestPlugin(Plugin):\n{members}\nEXTENSION = TestPlugin\n"


@pytest.fixture
def plugin(tmp_path: Path) -> Callable[..., str]:
    """Writes a module with a plugin of a class body, and returns its path."""

    def write(body: str, name: str = "mine", preamble: str = "", file: str = "") -> str:
        path = tmp_path / f"{file or name}.py"
        path.write_text(plugin_module(body, name, preamble), "utf-8")
        return str(path)

    return write
