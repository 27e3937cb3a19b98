"""Replies out of SQLite files and of copies in memory:

which row is drawn, how its tokens are written.
"""

from __future__ import annotations

import json
import logging
import sqlite3
import struct
from contextlib import closing
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.core.engine.request import RecordedReply
from app.core.text.huggingface import LocalTokenizer
from app.extensions.datasets.catalogue import Catalogue, ids_hash, text_hash
from app.extensions.datasets.library import DatasetError
from app.extensions.datasets.tokens import MISSING_ID, RecordedTokens, complete, decode, encode
from tests.extensions.datasets.conftest import Opener
from tests.extensions.datasets.files import PROMPT, make_file, row

if TYPE_CHECKING:
    from app.extensions.datasets.dataset import Dataset

UNKNOWN = [9, 9]


def reply(
    dataset: Dataset,
    most_tokens: int,
    least_tokens: int = 1,
    prompt: list[int] = PROMPT,
    seed: int = 1,
) -> RecordedReply:
    recorded = dataset.reply(
        prompt, (), min_tokens=least_tokens, max_tokens=most_tokens, rng=Random(seed)
    )
    assert recorded is not None
    return recorded


def test_recorded_prompt_gets_its_reply_truncated_to_the_limit(opened: Opener) -> None:
    dataset = opened([row([5], [50, 51]), row(PROMPT, [70, 71], ["a", "b"]), row([6], [60, 61])])
    for seed in range(10):
        assert reply(dataset, 9, seed=seed) == RecordedReply([70, 71], ["a", "b"], 0, False)
    assert reply(dataset, 9, 5) == RecordedReply([70, 71], ["a", "b"], 3, False), "min_tokens"
    dataset = opened([row(PROMPT, [1] * length) for length in (2, 3, 8)])
    assert {len(reply(dataset, 5, seed=seed).ids) for seed in range(40)} == {2, 3}
    dataset = opened([row(PROMPT, [1, 2, 3, 4])])
    assert reply(dataset, 3) == RecordedReply([1, 2, 3], ["1 ", "2 ", "3 "], 0, True)


def test_reply_of_the_requested_length_is_preferred_with_ignore_eos(
    opened: Opener,
) -> None:
    dataset = opened([row(PROMPT, [length] * length) for length in (2, 4, 6)])
    assert reply(dataset, 4, 4) == RecordedReply([4] * 4, ["4 "] * 4, 0, True)
    assert reply(dataset, 5, 5) == RecordedReply([6] * 5, ["6 "] * 5, 0, True)
    shorter = {reply(dataset, 8, 8, seed=seed).missing for seed in range(40)}
    assert shorter == {2, 4, 6}
    assert reply(dataset, 8, 8).reached_limit


def test_prompt_is_found_by_its_text_hash_in_older_dataset_files(
    opened: Opener, tokenizer: LocalTokenizer
) -> None:
    turns = [("user", "Hi"), ("assistant", "Hello."), ("user", "Who are you?")]
    ids = tokenizer.encode("A stand-in.")
    old = (text_hash(turns), json.dumps(tokenizer.pieces(ids)), len(ids))
    dataset = opened([old, *(row([number], [number] * len(ids)) for number in range(20))])
    for seed in range(10):
        recorded = dataset.reply(UNKNOWN, turns, min_tokens=1, max_tokens=50, rng=Random(seed))
        assert recorded is not None
        assert (recorded.ids, "".join(recorded.texts)) == (ids, "A stand-in.")


def test_lookup_of_a_corrupt_row_finds_no_reply(
    opened: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    """The true length counts where the column tells another."""
    dataset = opened([(row(PROMPT, [1])[0], "nonsense", 3), (*row([5], [5, 5, 5])[:2], 2)])
    with caplog.at_level(logging.WARNING):
        assert dataset.reply(PROMPT, (), min_tokens=1, max_tokens=5, rng=Random(1)) is None
        assert dataset.reply(PROMPT, (), min_tokens=1, max_tokens=5, rng=Random(1)) is None
    assert len(caplog.messages) == 1
    assert "a reply cannot be read" in caplog.text and "\n" not in caplog.messages[0]
    assert reply(dataset, 2, prompt=[5]) == RecordedReply([5, 5], ["5 ", "5 "], 0, True)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_file(tmp_path / "replies.sqlite3", [row(PROMPT, [1, 2])])


def test_no_reply_is_found_in_a_locked_file_or_for_a_deleted_row(
    file: Path, tokenizer: LocalTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    from app.extensions.datasets.dataset import Dataset

    content_before = file.read_bytes()
    dataset = Dataset(file, "llmd", False, tokenizer)
    with closing(dataset), closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert dataset.reply(PROMPT, (), min_tokens=1, max_tokens=5, rng=Random(1)) is None
        assert "locked" in caplog.text
        other.execute("ROLLBACK")
        assert reply(dataset, 5).ids == [1, 2]
        assert file.read_bytes() == content_before
        assert sorted(path.name for path in file.parent.iterdir()) == [file.name]
        other.execute("DELETE FROM llmd")
        assert dataset.reply(PROMPT, (), min_tokens=1, max_tokens=5, rng=Random(1)) is None


def test_in_memory_dataset_gives_replies_after_its_file_was_deleted(
    file: Path, tokenizer: LocalTokenizer
) -> None:
    from app.extensions.datasets.dataset import Dataset

    dataset = Dataset(file, "llmd", True, tokenizer)
    file.unlink()
    with closing(dataset):
        assert reply(dataset, 5).ids == [1, 2]


HASHES = [ids_hash([number]) for number in range(3)]
Rows = list[tuple[bytes, int, int]]

rows_of = st.lists(
    st.tuples(st.sampled_from(HASHES), st.integers(1, 12)), min_size=1, max_size=30
).map(
    lambda hashes_and_lengths: [
        (digest, length, key * 10) for key, (digest, length) in enumerate(hashes_and_lengths)
    ]
)
limits = st.tuples(st.integers(1, 14), st.integers(1, 14)).map(sorted)


@given(rows_of, limits)
def test_dataset_catalogue_prefers_fitting_replies_to_longer_ones(
    rows: Rows, limits: list[int]
) -> None:
    least_tokens, most_tokens = limits
    catalogue = Catalogue(rows)
    same = [(length, key) for digest, length, key in rows if digest == HASHES[0]]
    fitting = {key for length, key in same if least_tokens <= length <= most_tokens}
    longer = {key for length, key in same if length > most_tokens}
    drawn = {
        catalogue.find_recorded(HASHES[0], least_tokens, most_tokens, Random(seed))
        for seed in range(20)
    }
    assert drawn <= (fitting or longer or {key for _, key in same} or {None})
    fitting = {key for _, length, key in rows if least_tokens <= length <= most_tokens}
    drawn = {catalogue.find_any(least_tokens, most_tokens, Random(seed)) for seed in range(20)}
    assert drawn <= (fitting or {key for _, _, key in rows})


def test_dataset_rows_without_tokens_or_a_hash_match_no_prompt() -> None:
    rows: list[tuple[object, object, int]] = [
        (HASHES[0], 0, 1), (HASHES[0], -3, 2), (HASHES[0], None, 3), (HASHES[0], "4", 4),
        (None, 4, 5), ("text", 4, 6), (b"", 4, 7), (b"short", 4, 8),
    ]  # fmt: skip
    catalogue = Catalogue(rows)
    assert len(catalogue) == 4
    assert {catalogue.find_any(1, 9, Random(seed)) for seed in range(50)} == {5, 6, 7, 8}
    assert catalogue.find_recorded(HASHES[0], 1, 9, Random(1)) is None
    assert len(Catalogue([])) == 0


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_hash_of_token_ids_is_the_sha256_of_little_endian_words(
    ids: list[int],
) -> None:
    assert (
        ids_hash(ids) == sha256(b"".join(struct.pack("<I", token_id) for token_id in ids)).digest()
    )


def test_text_hash_covers_all_turns_of_the_conversation() -> None:
    assert text_hash([("user", "Hello!")]) == sha256(b"### user:\nHello!\n").digest()
    turns = [("system", "Be brief."), ("user", "Hi"), ("assistant", "Hi."), ("user", "Grüße")]
    written = "### unknown:\nBe brief.\n### user:\nHi\n### assistant:\nHi.\n### user:\nGrüße\n"
    assert text_hash(turns) == sha256(written.encode()).digest()


IDS = [7, 8]
STRINGS = ["a", "b"]


@pytest.mark.parametrize(
    ("text", "ids", "strings"),
    [
        ('{"Tokens": [7, 8], "Strings": ["a", "b"]}', IDS, STRINGS),
        ('{"tokens": [7, 8], "strings": ["a", "b"]}', IDS, STRINGS),
        ('{"NUMBERS": [7, 8], "sTrings": ["a", "b"], "more": 1}', IDS, STRINGS),
        ('{"Tokens": null, "Strings": ["a", "b"]}', [], STRINGS),
        ('["a", "b"]', [], STRINGS),
        ("[7, 8]", IDS, []),
    ],
)
def test_recorded_tokens_are_decoded_from_ids_strings_or_an_object(
    text: str, ids: list[int], strings: list[str]
) -> None:
    assert decode(text) == decode(text.encode()) == RecordedTokens(ids, strings)


@pytest.mark.parametrize(
    "raw",
    [
        None, 5, 1.5, "", "nonsense", "5", "null", "{}", "[]", '{"Tokens": [], "Strings": []}', '["a", 1]',
        '{"Tokens": [1.5]}', '{"Tokens": [true]}', '{"Tokens": [-1]}', '{"Tokens": [4294967296]}',
        '{"Tokens": [1], "Strings": [2]}', '{"Tokens": "ab"}', b"\xff\xfe", '["\ud800"]', "[" * 100_000,
    ],
)  # fmt: skip
def test_row_without_a_valid_reply_is_rejected(raw: object) -> None:
    with pytest.raises(DatasetError, match="gen_tokens"):
        decode(raw)


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.text()), min_size=1, max_size=8))
@settings(max_examples=20, deadline=None)
def test_recorded_tokens_are_unchanged_by_encoding_and_decoding(
    pairs: list[tuple[int, str]],
) -> None:
    tokens = RecordedTokens([token_id for token_id, _ in pairs], [text for _, text in pairs])
    assert decode(encode(tokens)) == tokens


def test_missing_token_ids_or_strings_are_computed_with_the_tokenizer(
    tokenizer: LocalTokenizer,
) -> None:
    strange = RecordedTokens([4_000_000_000, 1], ["not", "mine"])
    assert complete(strange, tokenizer) == strange
    ids = tokenizer.encode("The garden is open. 🌳 Grüße")
    strings = tokenizer.pieces(ids)
    for half in (
        RecordedTokens(ids, []),
        RecordedTokens(ids, ["too", "few"]),
        RecordedTokens([], strings),
    ):
        assert complete(half, tokenizer) == RecordedTokens(ids, strings)


def test_recorded_token_strings_are_kept_despite_another_tokenization(
    tokenizer: LocalTokenizer,
) -> None:
    strings = ["T", "he ", "", "gardengardengarden"]
    completed = complete(RecordedTokens([], strings), tokenizer)
    assert completed.strings == strings
    assert completed.ids == [tokenizer.encode(text)[0] if text else MISSING_ID for text in strings]
