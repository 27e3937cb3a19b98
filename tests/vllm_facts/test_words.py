"""The reader of command lines: one pass, all flaws with their places."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from config.flag_words import Flag, placed_words
from vllm_facts.options import PREFIX, option_flags, options_of
from vllm_facts.version import DESCRIBED
from vllm_facts.words import read_command_line

NEWEST = DESCRIBED[-1]
NAMES = (
    *("max-num-seqs", "enable-lora", "tokenizer", "optimization-level", "tensor-parallel-size"),
    *("compilation-config", "kv-transfer-config", "max-num", "swap-space"),
)
VALUES = ("1", "8k", "x", "-1", "", "{", '{"level": 3}', "[1, 2", "a=b", "--", "null")
KEYS = ("level", "mode", "a.b", "kv_role", "x")


def flags() -> list[Flag]:
    table = options_of(DESCRIBED)
    return [
        flag
        for name, option in table.items()
        for flag in option_flags(name, option, version=NEWEST)
    ]


FLAGS = flags()
FORMS = st.sampled_from(NAMES).map("--{}".format)
WORDS = st.one_of(
    FORMS,
    st.sampled_from(VALUES),
    st.sampled_from(("-tp", "-x", "-q", "--foo")),
    st.builds("{}={}".format, FORMS, st.sampled_from(VALUES)),
    st.builds("{}.{}".format, FORMS, st.sampled_from(KEYS)),
    st.builds("{}.{}={}".format, FORMS, st.sampled_from(KEYS), st.sampled_from(VALUES)),
    st.text(max_size=4),
)


@given(st.lists(WORDS, max_size=12))
def test_words_without_a_flaw_have_the_same_values_alone(words: list[str]) -> None:
    read = read_command_line(placed_words(words), FLAGS)
    wrong = [number for flaw in read.flaws for number in flaw.positions]
    assert len(wrong) == len(set(wrong))
    kept = [word for number, word in enumerate(words) if number not in wrong]
    alone = read_command_line(placed_words(kept), FLAGS)
    assert alone.flaws == []
    assert alone.values == read.values
    assert [word.text for word in alone.others] == [word.text for word in read.others]


def test_flaw_has_its_option_form_rule_fix_and_words() -> None:
    words = ["m", "--max-num-seqs", "x", "--enable-lora=1", "--swap-space", "4", "--max-model-len"]
    words += ["--compilation-config", '{"levle": 3}', "--kv-transfer-config.kv_role"]
    read = read_command_line(placed_words(words), FLAGS)
    assert [
        (flaw.option.removeprefix(PREFIX), flaw.error.form, flaw.error.rule, [*flaw.positions])
        for flaw in read.flaws
    ] == [
        ("--kv-transfer-config.kv_role", "--kv-transfer-config.kv_role", "value required", [9]),
        ("max-num-seqs", "--max-num-seqs", "valid value", [1, 2]),
        ("enable-lora", "--enable-lora", "no value", [3]),
        ("--swap-space", "--swap-space", "known flag", [4, 5]),
        ("max-model-len", "--max-model-len", "value required", [6]),
        ("compilation-config", "--compilation-config", "known field", [7, 8]),
    ]
    assert [word.text for word in read.others] == ["m"]
    assert read.values == {}


def test_parts_of_an_object_are_the_words_of_one_flaw() -> None:
    words = ["--compilation-config.level", "3", "m", "--compilation-config.nope=1"]
    [flaw] = read_command_line(placed_words(words), FLAGS).flaws
    assert flaw.error.rule == "known field"
    assert flaw.positions == [0, 1, 3]


def test_object_of_too_many_keys_is_a_flaw() -> None:
    words = ["m", f"--compilation-config{'.a' * 20_000}", "1", "--max-num-seqs", "8"]
    read = read_command_line(placed_words(words), FLAGS)
    [flaw] = read.flaws
    assert str(flaw.error) == "flag --compilation-config must have at most 100 keys behind dots"
    assert [*flaw.positions] == [1, 2]
    assert read.values == {f"{PREFIX}max-num-seqs": "8"}
