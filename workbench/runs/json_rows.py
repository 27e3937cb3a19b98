"""Objects of JSON files: one document, one in each line, or a list."""

from collections.abc import Iterator
from typing import Any, TypeAlias

from config import ConfigError
from config.untrusted import UntrustedDataError, decode_untrusted, python_json
from workbench.runs.input_files import (
    InputFile,
    first_bytes,
    json_documents,
    read_document,
)

Json: TypeAlias = dict[str, Any]


def json_objects(file: InputFile, path: str) -> Iterator[tuple[str, Json]]:
    """Yields the objects of a file with their places, such as `line 3`.

    NaN and infinities, which Python writes, are read.

    Raises:
        ConfigError: A document is not a JSON object.
        OSError: A document is too large.
    """
    if first_bytes(file).startswith(b"["):
        items = _decoded(read_document(file, path), path)
        for number, item in enumerate(items if isinstance(items, list) else [items], 1):
            yield f"item {number}", _object(item, f"{path}, item {number}")
        return
    for number, text in json_documents(file, path):
        place = f"line {number or 1}"
        yield place, _object(_decoded(text, f"{path}, {place}"), f"{path}, {place}")


def _decoded(text: bytes, place: str) -> object:
    try:
        value: object = decode_untrusted(text, decoder=python_json)
    except UntrustedDataError as error:
        raise ConfigError(f"{place}: {error}") from None
    return value


def _object(value: object, place: str) -> Json:
    if not isinstance(value, dict):
        raise ConfigError(f"{place} is not a JSON object")
    return value
