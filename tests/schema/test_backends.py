"""Which schemas vLLM's structured outputs refuse; found with xgrammar 0.2.8 and llguidance 1.9.1."""

from __future__ import annotations

import pytest

from app.engine.forms.schema.refusals import untaken

FALLS_BACK = {"type": "integer", "multipleOf": 2}


@pytest.mark.parametrize(
    ("schema", "keyword"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"type": "array", "uniqueItems": False}, "uniqueItems"),
        ({"type": ["array", "null"], "contains": {}}, "contains"),
        ({"properties": {"a": {"type": "array", "maxContains": 1}}}, "maxContains"),
        ({"type": "string", "format": "iri"}, "format"),
        ({"type": "object", "propertyNames": {}, "properties": {}}, "propertyNames"),
        ({"anyOf": [FALLS_BACK, {"not": {}}]}, "not"),
        ({"allOf": [{"type": "string"}, {"if": {}}]}, "if"),
        ({"properties": {"a": FALLS_BACK, "b": {"format": "uri-template"}}}, "format"),
        # What the first backend takes as it is, or the second or third one can do.
        ({"uniqueItems": True}, None),
        ({"not": {}}, None),
        (FALLS_BACK, None),
        ({"type": "string", "pattern": "a+", "maxLength": 3}, None),
        ({"type": "string", "format": "uri-template"}, None),
        ({"type": "object", "propertyNames": {}}, None),
        ({"type": "object", "properties": {"not": FALLS_BACK}, "patternProperties": {"a": {}}}, None),
        ({"properties": {"not": FALLS_BACK, "uniqueItems": {"type": "array"}}}, None),
        (True, None),
    ],
)
def test_a_keyword_that_no_backend_implements_is_refused(schema: object, keyword: str | None) -> None:
    assert untaken(schema) == keyword
