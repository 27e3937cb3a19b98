"""What the tests of scripts share."""

from pathlib import Path

import pytest

from tests.extensions.scripts.requests import Books


@pytest.fixture
def books(tmp_path: Path) -> Books:
    return Books(tmp_path)
