"""Fields of multipart bodies whose content type does not name the boundary."""

import pytest

from app.core.server.middleware.multipart import fields_of


@pytest.mark.parametrize(("boundary_characters", "names"), [(70, [("key", "key")]), (71, [])])
def test_short_first_line_is_taken_as_the_multipart_delimiter(
    boundary_characters: int, names: list[tuple[str, ...]]
) -> None:
    delimiter = "--" + "b" * boundary_characters
    head = 'Content-Disposition: form-data; name="key"'
    body = f"{delimiter}\r\n{head}\r\n\r\nsecret\r\n{delimiter}--\r\n"
    assert [field.names for field in fields_of(body)] == names
