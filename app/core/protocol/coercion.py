"""Types of the lax conversion of parsed JSON to request structs, and its error.

Start reading at `app.core.protocol.convert`.
"""

from collections.abc import Callable, Hashable, Mapping

Converter = Callable[[object], object]
Path = tuple[str | int, ...]
"""Keys and list indexes that lead from a body to a value."""

LaxFields = Mapping[str, Hashable]
"""Names of fields, each with a wider annotation or a function, for the lax conversion."""
JsonObject = dict[str, object]
"""A JSON object of a client, with unchecked contents."""


class ConversionError(Exception):
    """A value does not fit its type.

    Attributes:
        expected: What the value should be.
        path: Keys that lead to the value from the converted root.
        kind: Pydantic's name of the error type, which vLLM's clients match.
    """

    def __init__(self, expected: str, *path: str | int, kind: str = "value_error") -> None:
        super().__init__(expected)
        self.expected = expected
        self.path = path
        self.kind = kind

    def prefixed(self, *steps: str | int) -> "ConversionError":
        """Returns the same error, seen from the container that holds the value under `steps`."""
        return self.moved(*steps, *self.path)

    def moved(self, *path: str | int) -> "ConversionError":
        """Returns the same error with another path."""
        return ConversionError(self.expected, *path, kind=self.kind)


def format_param(path: Path) -> str:
    """Formats a path as ``param`` of an error: ``("stop", 0)`` becomes ``body.stop.0``."""
    return ".".join(["body", *map(str, path)])


def unconverted(value: object) -> object:
    """Returns `value` unchanged: the converter of fields that accept anything."""
    return value
