"""The page that follows one request through the code."""

import pytest

from scripts.one_request import PAGE, first_sentence, page


def test_page_of_one_request_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: python -m scripts.one_request"


@pytest.mark.parametrize(
    ("docstring", "sentence"),
    [
        ("Sends\n    the data.", "Sends the data."),
        ("Sends the data. May pause.", "Sends the data."),
        ("Sends it\n\nUnits: bytes.", "Sends it."),
    ],
)
def test_first_sentence_of_a_docstring_has_no_line_breaks(docstring: str, sentence: str) -> None:
    assert first_sentence(docstring) == sentence
