"""`python -m scripts.surface --write NAME` stores what one extension adds, in seconds."""

import json

import pytest

from scripts.surface import EXTENSIONS_FILE, as_text, parts_of_extensions, surface

STORED = json.loads(EXTENSIONS_FILE.read_text("utf-8"))


@pytest.mark.grpc
@pytest.mark.tracing
def test_part_of_one_extension_is_the_stored_part() -> None:
    parts = parts_of_extensions(surface(), ["sagemaker"])
    assert parts == {"sagemaker": STORED["sagemaker"]}
    assert parts["sagemaker"]


def test_stored_parts_are_in_the_order_of_a_whole_write() -> None:
    """A part elsewhere would move, and look like a removed one, when the file is next written."""
    assert EXTENSIONS_FILE.read_text("utf-8") == as_text(STORED)
