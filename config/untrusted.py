"""Decodes data that other programs or people wrote: messages, responses, and files.

`decode_untrusted` is the only decoder of such data (`tests/test_foreign_data.py`). Bodies of
requests have other decoders, with vLLM's error messages.

The decoders of msgspec and Python raise several unrelated errors: `DecodeError` for malformed data,
`UnicodeDecodeError` for text that is not UTF-8, `RecursionError` for nested data, and `ValueError`
for a number with thousands of digits. A command that forgets one of these errors prints a
traceback, and a listener ends.
"""

import json
from typing import Any, Final, Protocol, TypeVar, overload

import msgspec

INVALID = (AttributeError, LookupError, OverflowError, TypeError, ValueError)
"""Errors of code that reads decoded data of another form than it expects."""
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class UntrustedDataError(ValueError):
    """Raised for data that cannot be decoded; the message has the reason."""


class MistypedDataError(UntrustedDataError):
    """Raised for well-formed data whose types or values are not those of the decoder."""


class TooDeepError(UntrustedDataError):
    """Raised for data with more levels than the decoder reads: about a thousand."""


class DataDecoder(Protocol[T_co]):
    """A decoder, such as `msgspec.msgpack.Decoder(Question)`."""

    def decode(self, data: Any, /) -> T_co:
        """Returns the decoded data, or raises any error of msgspec or Python."""


class _PythonJson:
    """JSON as Python reads it: with NaN, infinities, unpaired surrogates, and repeated keys."""

    def decode(self, data: str | bytes, /) -> Any:
        return json.loads(data)


python_json: Final = _PythonJson()


@overload
def decode_untrusted(data: object, *, type: type[T]) -> T: ...


@overload
def decode_untrusted(data: object, *, type: Any = Any) -> Any: ...


@overload
def decode_untrusted(data: object, *, decoder: DataDecoder[T]) -> T: ...


def decode_untrusted(
    data: Any, *, type: Any = Any, decoder: DataDecoder[object] | None = None
) -> object:
    """Decodes JSON of `type`, or calls `decoder`.

    `data` is bytes, a view of bytes, or a text. The decoder takes bytes without copying them.

    Raises:
        MistypedDataError: The data is well-formed, but not of the type.
        TooDeepError: The data is nested too deeply.
        UntrustedDataError: The data is malformed, or not UTF-8.
    """
    try:
        if decoder is None:
            return msgspec.json.decode(data, type=type)
        return decoder.decode(data)
    except msgspec.ValidationError as error:
        raise MistypedDataError(str(error)) from None
    except RecursionError:
        raise TooDeepError("the data is nested too deeply") from None
    except ValueError as error:
        raise UntrustedDataError(str(error)) from None


def is_valid_json(data: str | bytes) -> bool:
    """Returns True if all of the data is one JSON value."""
    try:
        decode_untrusted(data, type=msgspec.Raw)
    except UntrustedDataError:
        return False
    return True
