"""Types of the lax conversion of parsed JSON to request structs, and its error.

Start reading at `app.core.protocol.convert`.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence

Converter = Callable[[object], object]
Path = tuple[str | int, ...]
"""Keys and list indexes that lead from a body to a value."""

LaxFields = Mapping[str, Hashable]
"""Names of fields, each with a wider annotation or a function, for the lax conversion."""
JsonObject = dict[str, object]
"""A JSON object of a client, with unchecked contents."""
MAX_PROBLEMS = 10
"""Errors of one body that an answer lists, as in vLLM."""


class ConversionError(Exception):
    """One or several values do not fit their types.

    Attributes:
        expected: What the first value should be.
        path: Keys that lead to the value from the converted root.
        kind: Pydantic's name of the error type, which vLLM's clients match.
        context: Pydantic's values for its message, such as a limit.
        further: Errors of other values, at most `MAX_PROBLEMS`.
        count: The number of all such values; `further` may have fewer.
    """

    def __init__(
        self,
        expected: str,
        *path: str | int,
        kind: str = "value_error",
        context: JsonObject | None = None,
    ) -> None:
        super().__init__(expected)
        self.expected = expected
        self.path = path
        self.kind = kind
        self.context = context
        self.further: Sequence[ConversionError] = ()
        self.count = 1

    def prefixed(self, *steps: str | int) -> "ConversionError":
        """Returns the same errors, seen from the container that holds the values under `steps`."""
        error = self.moved(*steps, *self.path)
        error.further = [other.moved(*steps, *other.path) for other in self.further]
        error.count = self.count
        return error

    def moved(self, *path: str | int) -> "ConversionError":
        """Returns the first error with another path."""
        return ConversionError(self.expected, *path, kind=self.kind, context=self.context)


def joined(failures: Sequence[ConversionError]) -> ConversionError:
    """Returns the errors of several values, at least one, as one error."""
    first = failures[0]
    further = [*first.further]
    count = first.count
    for failure in failures[1:]:
        count += failure.count
        if len(further) < MAX_PROBLEMS:
            further += [failure, *failure.further]
    error = first.moved(*first.path)
    # Copies: an exception that was raised would refer to the frame of the caller.
    error.further = [other.moved(*other.path) for other in further[:MAX_PROBLEMS]]
    error.count = count
    return error


def format_param(path: Path) -> str:
    """Formats a path as ``param`` of an error: ``("stop", 0)`` becomes ``body.stop.0``."""
    return ".".join(["body", *map(str, path)])


def unconverted(value: object) -> object:
    """Returns `value` unchanged: the converter of fields that accept anything."""
    return value
