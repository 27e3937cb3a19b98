"""Which row is drawn, against the rules told in the plainest way."""

from __future__ import annotations

import struct
from hashlib import sha256
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from app.engine.dataset.dataset import Catalogue, ids_hash, text_hash

HASHES = [ids_hash([number]) for number in range(3)]
Rows = list[tuple[bytes, int, int]]

rows_of = st.lists(st.tuples(st.sampled_from(HASHES), st.integers(1, 12)), min_size=1, max_size=30).map(
    lambda found: [(digest, length, key * 10) for key, (digest, length) in enumerate(found)]
)
limits = st.tuples(st.integers(1, 14), st.integers(1, 14)).map(sorted)


@given(rows_of, limits)
def test_a_known_prompt_gets_a_fitting_row_else_a_longer_one_else_a_shorter_one_and_any_other_any(
    rows: Rows, limits: list[int]
) -> None:
    least, most = limits
    catalogue = Catalogue(rows)
    same = [(length, key) for digest, length, key in rows if digest == HASHES[0]]
    fitting = {key for length, key in same if least <= length <= most}
    longer = {key for length, key in same if length > most}
    drawn = {catalogue.recorded(HASHES[0], least, most, Random(seed)) for seed in range(20)}
    assert drawn <= (fitting or longer or {key for _, key in same} or {None})
    fitting = {key for _, length, key in rows if least <= length <= most}
    drawn = {catalogue.any(least, most, Random(seed)) for seed in range(20)}
    assert drawn <= (fitting or {key for _, _, key in rows})


def test_rows_without_tokens_are_left_out_and_rows_without_a_hash_are_only_drawn_at_random() -> None:
    rows: list[tuple[object, object, int]] = [
        (HASHES[0], 0, 1), (HASHES[0], -3, 2), (HASHES[0], None, 3), (HASHES[0], "4", 4),
        (None, 4, 5), ("text", 4, 6), (b"", 4, 7), (b"short", 4, 8),
    ]  # fmt: skip
    catalogue = Catalogue(rows)
    assert len(catalogue) == 4
    assert {catalogue.any(1, 9, Random(seed)) for seed in range(50)} == {5, 6, 7, 8}
    assert catalogue.recorded(HASHES[0], 1, 9, Random(1)) is None
    assert len(Catalogue([])) == 0


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_each_id_is_four_bytes_the_lowest_first(ids: list[int]) -> None:
    assert ids_hash(ids) == sha256(b"".join(struct.pack("<I", each) for each in ids)).digest()


def test_older_hashes_are_of_all_turns_where_other_roles_are_unknown() -> None:
    assert text_hash([("user", "Hello!")]) == sha256(b"### user:\nHello!\n").digest()
    turns = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hi."), ("user", "Grüße")]
    written = "### unknown:\nBe brief.\n### user:\nHi\n### assistant:\nHi.\n### user:\nGrüße\n"
    assert text_hash(turns) == sha256(written.encode()).digest()
