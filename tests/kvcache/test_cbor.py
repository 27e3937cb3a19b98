"""CBOR by hand is what a CBOR library writes."""

from __future__ import annotations

from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.kvcache import cbor
from app.kvcache.cbor import block_codes

EDGES = [0, 23, 24, 255, 256, 65_535, 65_536, 151_643, 2**18 - 1, 2**18, 2**32 - 1, 2**32, 2**53, 2**64 - 1]

texts = st.text(max_size=300)
plain = st.none() | st.integers(-(2**64), 2**64 - 1) | st.binary(max_size=300) | texts
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=30).map(tuple)
        | st.lists(inner, max_size=4)
        | st.dictionaries(texts, inner, max_size=4)
    ),
    max_leaves=60,
)


@pytest.mark.slow
@given(values)
def test_values_are_encoded_canonically(value: Any) -> None:
    assert cbor.encode(value) == cbor2.dumps(value, canonical=True)


@pytest.mark.parametrize("number", [*EDGES, *(-1 - edge for edge in EDGES)])
def test_integers_have_their_shortest_form_at_every_edge(number: int) -> None:
    assert cbor.encode(number) == cbor2.dumps(number)


@pytest.mark.parametrize("value", [1.5, True, object(), {1.5: 2}])
def test_what_no_block_hash_covers_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        cbor.encode(value)


def test_integers_beyond_64_bits_are_refused() -> None:
    with pytest.raises(ValueError):
        cbor.encode(2**64)


@given(st.lists(st.integers(0, 2**64 - 1) | st.sampled_from(EDGES) | st.integers(0, 200_000)))
def test_token_ids_of_every_width_are_those_of_an_array(ids: list[int]) -> None:
    head = cbor.head(cbor.ARRAY, len(ids))
    assert head + b"".join(block_codes(ids, 1)) == cbor2.dumps(ids)


@given(st.integers(1, 40), st.integers(0, 10), st.integers(0, 2**32 - 1))
def test_token_ids_come_in_blocks(block_size: int, blocks: int, first: int) -> None:
    ids = [(first + 7919 * n) % 2**32 for n in range(block_size * blocks)]
    expected = [cbor2.dumps(ids[at : at + block_size]) for at in range(0, len(ids), block_size)]
    head = cbor.head(cbor.ARRAY, block_size)
    assert [head + codes for codes in block_codes(ids, block_size)] == expected
