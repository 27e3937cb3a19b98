"""Hashes of events as numbers of 64 bits."""

from hypothesis import given
from hypothesis import strategies as st

from app.core.engine.kvcache.hashing import low64
from app.shared.event_hashes import signed64, unsigned64

HASHES = st.integers(-(1 << 63), (1 << 64) - 1) | st.binary(min_size=1, max_size=64)


@given(HASHES)
def test_signed_and_unsigned_numbers_have_the_same_bits(block_hash: int | bytes) -> None:
    unsigned = unsigned64(block_hash)
    signed = signed64(block_hash)
    assert 0 <= unsigned < 1 << 64, "unsigned"
    assert -(1 << 63) <= signed < 1 << 63, "signed"
    assert signed % (1 << 64) == unsigned, "the same bits"


@given(HASHES)
def test_numbers_are_those_of_the_earlier_conversions(block_hash: int | bytes) -> None:
    number = block_hash if isinstance(block_hash, int) else low64(block_hash)
    grpc_number = number - (1 << 64) if number >= 1 << 63 else number
    assert signed64(block_hash) == grpc_number, "events over gRPC"
    index_key = block_hash & (1 << 64) - 1 if isinstance(block_hash, int) else low64(block_hash)
    assert unsigned64(block_hash) == index_key, "keys of the index"
