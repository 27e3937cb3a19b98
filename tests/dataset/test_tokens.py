"""The spellings of a recorded reply, and what is added to half of one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.engine.dataset.tokens import NO_ID, DatasetError, RecordedTokens, completed, decode, encode
from app.text.huggingface import LocalTokenizer

IDS, STRINGS = [7, 8], ["a", "b"]


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
def test_every_spelling_is_read_from_text_and_from_bytes(
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
def test_what_holds_no_reply_is_refused(raw: object) -> None:
    with pytest.raises(DatasetError, match="gen_tokens"):
        decode(raw)


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.text()), min_size=1, max_size=8))
@settings(max_examples=20, deadline=None)
def test_what_is_written_is_read_again(pairs: list[tuple[int, str]]) -> None:
    tokens = RecordedTokens([each for each, _ in pairs], [text for _, text in pairs])
    assert decode(encode(tokens)) == tokens


def test_half_of_a_reply_is_completed(tokenizer: LocalTokenizer) -> None:
    strange = RecordedTokens([4_000_000_000, 1], ["not", "mine"])
    assert completed(strange, tokenizer) == strange
    ids = tokenizer.encode("The garden is open. 🌳 Grüße")
    strings = tokenizer.pieces(ids)
    for half in (RecordedTokens(ids, []), RecordedTokens(ids, ["too", "few"]), RecordedTokens([], strings)):
        assert completed(half, tokenizer) == RecordedTokens(ids, strings)


def test_strings_that_are_cut_otherwise_keep_their_cut(tokenizer: LocalTokenizer) -> None:
    strings = ["T", "he ", "", "gardengardengarden"]
    made = completed(RecordedTokens([], strings), tokenizer)
    assert made.strings == strings
    assert made.ids == [tokenizer.encode(each)[0] if each else NO_ID for each in strings]
