"""Which tokenizers may be asked for a text in parts."""

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from app.kvindex.cuts import Cutter, is_local, is_local_pattern, marks_words
from tests.kvindex.kinds import KINDS, LLAMA_3, PARTED, llama_2


@pytest.mark.parametrize(
    "pattern",
    [
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        LLAMA_3,
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{M}]*[\p{Ll}\p{M}]+(?i:'s|'t|'re)?| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+",
        r"[!#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{P}]?[\p{L}\p{M}]+| ?[\p{P}]+[\r\n]*|\s+",
        r"[一-龥぀-ゟ゠-ヿ]+",
        " {2,}",
        r"\w+|[^\w\s]+",
    ],
)
def test_patterns_of_real_tokenizers_look_no_further_than_a_word(pattern: str) -> None:
    assert is_local_pattern(pattern)


@pytest.mark.parametrize(
    "pattern",
    [
        r"<[^>]*>|.",
        r"[^>]+?>",
        r"[\w ]+:|\w+",
        r"\S+@",
        r"\P{L}+x",
        ".*x",
        "(a|b)+c",
        r"(?=(\d{3})+(?!\d))",
        r"(?<=a+)b",
        r"(a)\1",
    ],
)
def test_patterns_that_may_look_far_are_told(pattern: str) -> None:
    assert not is_local_pattern(pattern)


def test_every_kind_is_told() -> None:
    assert {name for name, kind in KINDS.items() if is_local(kind())} == set(KINDS) - {"from_right"}
    marked = {"llama_2", "gemma"}
    assert {kind.__name__ for kind in PARTED if marks_words(kind())} == marked


def test_only_the_vocabulary_that_is_merged_tells_whether_marks_begin_words() -> None:
    marking = llama_2()
    marking.add_special_tokens(["<begin▁of▁sentence>"])
    assert marks_words(marking)
    unmarked = Tokenizer(models.BPE({"a": 0, "b": 1}, []))
    unmarked.normalizer = normalizers.Replace(" ", "▁")
    assert not marks_words(unmarked)
    unmarked.add_tokens(["▁"])
    assert not marks_words(unmarked)


def test_components_that_are_not_known_to_be_local_are_not() -> None:
    tokenizer = Tokenizer(models.BPE())
    assert Cutter.of(tokenizer) is not None
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.FixedLength(5)])
    assert Cutter.of(tokenizer) is None
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(Regex("(a)+b"), "")])
    assert Cutter.of(tokenizer) is None
    assert Cutter.of(Tokenizer(models.BPE(dropout=0.1))) is None


def test_cuts_are_between_words_and_never_inside_a_character() -> None:
    cutter = Cutter.of(KINDS["word_piece"]())
    assert cutter is not None
    text = "the cat, ½ 🎉sat"
    assert [text[:characters] for _, characters in cutter.encode(text).cuts] == [
        "the", "the cat", "the cat,", "the cat, ½",
    ]  # fmt: skip
