"""The page knows the numbers that the server sends."""

import json
import re
from pathlib import Path

from app.core.engine.batch import Phase
from app.extensions import console


def test_phase_numbers_equal_those_in_the_javascript_of_the_console_page() -> None:
    page = Path(console.__file__).parent / "page" / "model.js"
    [names] = re.findall(r"const PHASES = (\[.*?\]);", page.read_text())
    assert [name.upper() for name in json.loads(names)] == [
        Phase(number).name for number in range(5)
    ]
    assert len(Phase) == 5
