"""Shapes, which stand for the values of a schema."""

from app.extensions.forms.schema.backends.shapes import ANY, Intersection, Text
from app.extensions.forms.schema.backends.work import Work


def test_text_that_is_intersected_with_itself_keeps_its_patterns_once() -> None:
    intersection = Intersection(lambda _: ANY, Work())
    text = Text(patterns=("a", "b"))
    assert intersection.of(text, text) == text
    assert intersection.of(text, Text(patterns=("b", "c"))) == Text(patterns=("a", "b", "c"))
