"""JSON within strings of requests."""

import math

import pytest

from app.core.base.nested_json import decode_nested
from config.untrusted import TooDeepError, UntrustedDataError


def test_nested_json_is_decoded_as_python_reads_it() -> None:
    assert decode_nested('{"a": [1, "b"], "a": {}}') == {"a": {}}
    assert math.isinf(decode_nested("1e400"))  # type: ignore[arg-type]
    assert decode_nested('"\\ud800"') == "\ud800"
    assert decode_nested('["\ud800"]') == ["\ud800"]


@pytest.mark.parametrize("text", ["", "{", "[" + "1e300," * 10_000 + "1]", "[" + "{}," * 300_000])
def test_malformed_and_heavy_texts_are_rejected(text: str) -> None:
    with pytest.raises(UntrustedDataError):
        decode_nested(text)


def test_deep_text_is_rejected() -> None:
    with pytest.raises(TooDeepError):
        decode_nested("[" * 100_000 + "]" * 100_000)
