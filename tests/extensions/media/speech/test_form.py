"""Forms with files: fields, limits and hostile bodies."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.server.http.errors import ApiError
from app.extensions.media.speech.form import MAX_FIELD_BYTES, MAX_FIELDS, UploadedFile, read_form

TYPE = "multipart/form-data; boundary=frontier"


def field(name: str, value: bytes) -> bytes:
    return b'--frontier\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (
        name.encode(),
        value,
    )


def file(name: str, data: bytes, filename: str = "a.wav") -> bytes:
    return (
        b'--frontier\r\nContent-Disposition: form-data; name="%b"; filename="%b"\r\n'
        b"Content-Type: audio/wav\r\n\r\n%b\r\n" % (name.encode(), filename.encode(), data)
    )


END = b"--frontier--\r\n"


def test_form_has_texts_and_files() -> None:
    body = field("model", b"whisper") + file("file", b"\0\1\r\n--front\r\n\2") + END
    values = read_form(body, TYPE)
    assert values == {"model": "whisper", "file": UploadedFile("a.wav", b"\0\1\r\n--front\r\n\2")}


def test_last_value_of_a_name_counts_and_an_empty_text_is_absent() -> None:
    body = field("language", b"de") + field("language", b"en") + field("model", b"") + END
    assert read_form(body, TYPE) == {"language": "en"}


def test_encoded_form_has_texts() -> None:
    values = read_form(b"language=en&prompt=two+words", "application/x-www-form-urlencoded")
    assert values == {"language": "en", "prompt": "two words"}


@pytest.mark.parametrize("content_type", [None, "", "application/json", "text/plain"])
def test_other_body_is_no_form(content_type: str | None) -> None:
    assert read_form(b'{"model": "whisper"}', content_type) == {}


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_contents_are_returned_unchanged(first: bytes, second: bytes) -> None:
    if b"--frontier" in first + b"\n" + second:
        return
    values = read_form(file("a", first) + file("b", second) + END, TYPE)
    assert values == {"a": UploadedFile("a.wav", first), "b": UploadedFile("a.wav", second)}


@given(st.binary(max_size=400), st.integers(min_value=0, max_value=400))
def test_any_body_is_a_form_or_an_error(noise: bytes, place: int) -> None:
    whole = field("model", b"whisper") + file("file", bytes(200)) + END
    try:
        read_form(whole[:place] + noise + whole[place:], TYPE)
    except ApiError as error:
        assert error.status == 400


HOSTILE = {
    "nothing": b"",
    "no part": b"x" * 100,
    "cut in a file": file("file", bytes(1_000))[:-500],
    "megabytes before the first part": b"x" * 20_000_000,
    "head without an end": b"--frontier\r\n" + b"X-Header: x\r\n" * 1_500_000,
    "one long head": b"--frontier\r\nX-Header: " + b"x" * 20_000_000,
    "head without a disposition": b"--frontier\r\nX-Header: x\r\n\r\nx\r\n" + END,
    "part without a name": b"--frontier\r\nContent-Disposition: form-data\r\n\r\nx\r\n" + END,
    "head that is no Unicode": b"--frontier\r\n\xff\xfe: x\r\n\r\nx\r\n" + END,
    "too many fields": field("a", b"x") * (MAX_FIELDS + 1) + END,
    "too many files": file("a", b"x") * (MAX_FIELDS + 1) + END,
    "field of a megabyte": field("prompt", b"x" * (MAX_FIELD_BYTES + 1)) + END,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_form_is_rejected(name: str) -> None:
    with pytest.raises(ApiError) as raised:
        read_form(HOSTILE[name], TYPE)
    assert raised.value.status == 400


@pytest.mark.parametrize("content_type", ["multipart/form-data", "multipart/form-data; boundary="])
def test_form_without_a_boundary_is_rejected(content_type: str) -> None:
    with pytest.raises(ApiError, match="Missing boundary in multipart"):
        read_form(field("a", b"b") + END, content_type)


FILES_OF_LINES = {
    "line feeds": b"\n" * 4_000_000,
    "carriage returns": b"\r" * 4_000_000,
    "line ends": b"\r\n" * 2_000_000,
    "halves of the delimiter": b"\r\n--front" * 400_000,
    "delimiters that go on": b"\r\n--frontierx" * 300_000,
}


@pytest.mark.parametrize("name", FILES_OF_LINES)
def test_file_of_line_ends_is_returned_unchanged(name: str) -> None:
    data = FILES_OF_LINES[name]
    values = read_form(file("file", data) + END, TYPE)
    assert values == {"file": UploadedFile("a.wav", data)}
