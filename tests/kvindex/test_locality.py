"""Which tokenizers may be asked for a text in parts."""

from itertools import pairwise

import pytest
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from app.kvindex.cuts import Cutter, is_local, is_local_pattern, marks_words
from tests.kvindex.kinds import KINDS, LLAMA_3, PARTED, llama_2


def copy(tokenizer: Tokenizer) -> Tokenizer:
    made: Tokenizer = Tokenizer.from_str(tokenizer.to_str())
    return made


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


def test_only_marks_that_are_those_of_the_vocabulary_begin_words() -> None:
    marking = copy(llama_2())
    marking.normalizer = None
    for replacement, marks in (("▁", True), ("_", False)):
        marking.pre_tokenizer = pre_tokenizers.Metaspace(replacement=replacement, split=False)
        assert marks_words(marking) is marks
    for blank, mark, marks in ((" ", "▁", True), (" ", "_", False), ("  ", "▁", False)):
        marking.pre_tokenizer = None
        marking.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(blank, mark)])
        assert marks_words(marking) is marks
    marking.pre_tokenizer = pre_tokenizers.Split("▁", "isolated")
    assert not marks_words(marking)


@pytest.mark.parametrize(
    ("single", "local"), [("$A", True), ("<s> $A <s>", True), ("$A $A", False), ("<s> $A <s> $A", False)]
)
def test_a_text_has_to_stand_once_between_special_tokens(single: str, local: bool) -> None:
    tokenizer = copy(llama_2())
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1)])
    assert is_local(tokenizer) is local
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(), tokenizer.post_processor])
    assert is_local(tokenizer) is local


FRAMES = {
    "embedded": ([], []),
    "byte_level": ([1], [2]),
    "llama_3": ([1], []),
    "llama_2": ([1], [2]),
    "unigram": ([], [2]),
    "word_piece": ([1], [2]),
}


@pytest.mark.parametrize("kind", FRAMES)
def test_special_tokens_around_a_text_are_found_out(kind: str) -> None:
    assert Cutter(KINDS[kind]()).frame == FRAMES[kind]


def test_where_special_tokens_cannot_be_told_from_those_of_the_text_there_is_no_frame() -> None:
    assert Cutter(Tokenizer(models.BPE())).frame is None  # nothing has tokens
    tokenizer = copy(llama_2())
    for single, frame in (("$A <s> $A", None), ("<s> $A <s> $A", None), ("<s> <s> $A", ([1, 1], []))):
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=[("<s>", 1)])
        assert Cutter(tokenizer).frame == frame
    for most in (1, 2, 3):
        tokenizer.enable_truncation(most)
        assert Cutter(tokenizer).frame is None


def test_the_longest_added_token_is_known() -> None:
    for kind, longest in (("byte_level", "café au lait"), ("llama_2", "<|user|>"), ("word_piece", "[MASK]")):
        assert Cutter(KINDS[kind]()).longest_added_token == len(longest)


MIXED = "the cat  sat on a<|user|> mat; e\u0301x, ½ 🎉sat\n\n\u0301end 42"
WORDS = {
    "embedded": "the| cat| | sat| on| a|<|user|>| mat|;| e|\u0301|x|,| ½| 🎉|sat|\n|\n|\u0301|end| 42",
    "byte_level": "the| |cat| | sat| on| a|<|user|>| mat|;| e\u0301x|,| ½| 🎉|sat|\n|\n\u0301|end| 42",
    "llama_3": "the| cat| | sat| on| a|<|user|>| mat|;| e|\u0301x|,| |½| 🎉|sat|\n\n|\u0301end| |42",
    "llama_2": "the| cat|  sat| on| a|<|user|>| mat;| e\u0301x,| ½| 🎉sat\n\n\u0301end| 42",
    "unigram": "the| cat|  sat| on| a|<|user|>| mat;| e\u0301x,| ½| 🎉sat\n\n\u0301end| 42",
    "word_piece": "the| cat|  sat| on| a|<|||user|||>| mat|;| e\u0301x|,| ½| 🎉sat|\n\n\u0301end| 42",
    "whitespace": "the| cat|  sat| on| a|<|user|>| mat;| e\u0301x,| ½| 🎉sat|\n\n\u0301end| 42",
}


@pytest.mark.parametrize("kind", WORDS)
def test_a_text_is_cut_between_words(kind: str) -> None:
    cuts = Cutter(KINDS[kind]()).encode(MIXED).cuts
    places = [0, *(characters for _, characters in cuts), len(MIXED)]
    assert "|".join(MIXED[begin:end] for begin, end in pairwise(places)) == WORDS[kind]


@pytest.mark.parametrize("kind", [kind.__name__ for kind in PARTED])
def test_a_cut_tells_how_many_tokens_the_text_before_it_has(kind: str) -> None:
    cutter = Cutter(KINDS[kind]())
    encoded = cutter.encode(MIXED)
    assert len(encoded.cuts) > 8
    for tokens, characters in encoded.cuts:
        assert cutter.encode(MIXED[:characters]).ids == encoded.ids[:tokens]


def test_cuts_are_between_words_and_never_inside_a_character() -> None:
    cutter = Cutter.of(KINDS["word_piece"]())
    assert cutter is not None
    text = "the cat, ½ 🎉sat"
    assert [text[:characters] for _, characters in cutter.encode(text).cuts] == [
        "the", "the cat", "the cat,", "the cat, ½",
    ]  # fmt: skip
