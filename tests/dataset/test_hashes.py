"""The two hashes by which a prompt is found."""

import struct
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from app.dataset.catalogue import ids_hash, text_hash


def test_ids_are_hashed_as_in_the_specification() -> None:
    told = "4636993d3e1da4e9d6b8f87b79e8f7c6d018580d52661950eabc3845c5897a4d"
    assert ids_hash([1, 2, 3]).hex() == told


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_each_id_is_four_bytes_the_lowest_first(ids: list[int]) -> None:
    assert ids_hash(ids) == sha256(b"".join(struct.pack("<I", each) for each in ids)).digest()


def test_a_text_prompt_is_one_turn_of_the_user() -> None:
    assert text_hash([("user", "Hello!")]) == sha256(b"### user:\nHello!\n").digest()


def test_a_chat_is_all_its_turns_and_other_roles_are_unknown() -> None:
    turns = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hi."), ("user", "Grüße")]
    written = "### unknown:\nBe brief.\n### user:\nHi\n### assistant:\nHi.\n### user:\nGrüße\n"
    assert text_hash(turns) == sha256(written.encode()).digest()
