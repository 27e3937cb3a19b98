"""Decodes JSON within a string of a request, whose body's weight does not count the string."""

from app.core.base.clock.pause import paced
from config.json_text import MAX_WEIGHT, weights
from config.untrusted import UntrustedDataError, decode_untrusted, python_json


def decode_nested(text: str) -> object:
    """Returns the value of a JSON text, as Python reads it; pauses while a long text is weighed.

    Raises:
        UntrustedDataError: The text is malformed, or decoding it would block the event loop.
    """
    if sum(paced(weights(text.encode(errors="replace")))) > MAX_WEIGHT:
        raise UntrustedDataError("the text has too many values")
    return decode_untrusted(text, decoder=python_json)
