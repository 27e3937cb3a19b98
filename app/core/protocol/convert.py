"""Entry points of the lax conversion, which is imported at the first body that needs it.

See `app.core.protocol.lax_conversion`.
"""

from collections.abc import Hashable
from typing import Any, TypeVar

from msgspec import Struct

T = TypeVar("T", bound=Struct)


def convert(kind: type[T], value: object) -> T:
    """Builds a struct of type `kind` from parsed JSON, and drops unknown keys.

    A struct's class attribute ``lax_fields`` maps field names to a wider annotation or a function,
    for inputs that msgspec's types cannot express.

    Raises:
        ConversionError: A value does not fit.
        ApiError: A struct's ``__post_init__`` rejects its values.
    """
    struct: T = convert_value(kind, value)
    return struct


def convert_value(annotation: Hashable, value: object) -> Any:
    """Converts `value` to the type that `annotation` describes.

    Raises:
        ConversionError: A value does not fit.
    """
    from app.core.protocol.lax_conversion import converter_of

    return converter_of(annotation)(value)
