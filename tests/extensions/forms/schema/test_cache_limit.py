"""The cache of compiled schemas follows a lowered limit, and shrinks on demand."""

from app.extensions.forms.schema import Schemas


def test_compiled_schemas_shrink_to_a_lowered_limit_at_once() -> None:
    schemas = Schemas()
    for number in range(40):
        schemas.compile({"type": "object", "properties": {f"a{number}": {"type": "string"}}})
    size_bytes = schemas.size_bytes
    schemas.limit_bytes = size_bytes // 4
    assert 0 < schemas.size_bytes <= size_bytes // 4 == schemas.limit_bytes


def test_compiled_schemas_are_removed_and_compiled_again() -> None:
    schemas = Schemas()
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    first = schemas.compile(schema)
    size_bytes = schemas.size_bytes
    schemas.shrink()
    assert schemas.size_bytes == 0
    assert schemas.compile(schema) is not first
    assert schemas.size_bytes == size_bytes
