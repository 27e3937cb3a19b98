"""One decoder of foreign data, with one error."""

import json
from collections.abc import Callable
from functools import partial

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from config.untrusted import (
    MistypedDataError,
    TooDeepError,
    UntrustedDataError,
    decode_untrusted,
    python_json,
)
from config.yaml_file import decode_yaml
from tests.drawn import drawn_examples

POINT = msgspec.defstruct("Point", [("x", int), ("names", list[str], [])])
"""Any struct."""
Decode = Callable[[bytes], object]


def yaml_of(data: bytes) -> object:
    return decode_yaml(data.decode("utf-8", "replace"))


DECODERS: dict[str, Decode] = {
    "JSON": decode_untrusted,
    "typed JSON": partial(decode_untrusted, type=POINT),
    "JSON of a decoder": partial(decode_untrusted, decoder=msgspec.json.Decoder(POINT)),
    "JSON of Python": partial(decode_untrusted, decoder=python_json),
    "msgpack": partial(decode_untrusted, decoder=msgspec.msgpack.Decoder(POINT)),
    "any msgpack": partial(decode_untrusted, decoder=msgspec.msgpack.Decoder()),
    "YAML": yaml_of,
}
HOSTILE = [
    b"",
    b"\xff\xfe",
    b'{"x": "\xff"}',
    b'{"x": "\\ud800"}',
    b"[" * 100_000,
    b'{"x":' * 100_000,
    b"[" * 2_000 + b"]" * 2_000,
    b"1" * 5_000,
    b'{"x": ' + b"1" * 5_000 + b"}",
    b'{"x": 1e999}',
    b"\x91" * 100_000,
    b"\x81\xa1x\xdd\xff\xff\xff\xff",
    b"\xdf\xff\xff\xff\xff",
    b"\x82\xa1x\x01\xa5names\x91\xa2\xff\xfe",
    b"\x81\x91\x80\x01",
    b"\xd7\xff" + b"\xff" * 8,
    b"!!bool x",
    b"!!timestamp x",
    b"- " * 3_000,
    b"a: 2020-99-99",
    b"? {a: 1}\n: b",
]


@pytest.mark.parametrize("decode", DECODERS.values(), ids=list(DECODERS))
@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_data_raises_at_most_the_one_error(decode: Decode, data: bytes) -> None:
    assert_only_the_one_error(decode, data)


@pytest.mark.parametrize("decode", DECODERS.values(), ids=list(DECODERS))
@drawn_examples(100)
@given(data=st.binary(max_size=200))
@example(data=b"\x93\x01\x91\x82\xa4type\xa2\xff\xfe")
def test_any_bytes_raise_at_most_the_one_error(decode: Decode, data: bytes) -> None:
    assert_only_the_one_error(decode, data)


def assert_only_the_one_error(decode: Decode, data: bytes) -> None:
    try:
        decode(data)
    except UntrustedDataError as error:
        assert str(error)


def test_wrong_types_and_deep_nests_are_distinguished() -> None:
    with pytest.raises(MistypedDataError, match=r"Expected `int`.*\$\.x"):
        decode_untrusted(b'{"x": "a"}', type=POINT)
    with pytest.raises(TooDeepError, match="nested too deeply"):
        decode_untrusted(b"[" * 100_000)


@given(st.recursive(st.none() | st.integers(-9, 9) | st.text(), st.lists, max_leaves=9))
def test_valid_data_is_decoded_as_by_the_library(value: object) -> None:
    assert decode_untrusted(json.dumps(value, ensure_ascii=True).encode()) == value
    assert decode_untrusted(json.dumps(value), decoder=python_json) == value
    data = msgspec.msgpack.encode(value)
    assert decode_untrusted(memoryview(data), decoder=msgspec.msgpack.Decoder()) == value
