"""Texts written for a pattern match it, and no pattern takes long."""

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.extensions.forms.schema.bounds import SchemaError, UnsatisfiableError, WorkBudget
from app.extensions.forms.schema.patterns import Pattern

PYTHON = [
    "", "^$", r"\d{3}-\d{4}", r"^[a-z0-9]+(?:-[a-z0-9]+)*$", r"(cat|dog|bird)s?", r"[^\d\s]{4}", ".{10}",
    r"\S+\s\S+", r"\W\w\D", r"(?i:hello)", r"(?i)yes|no", r"(.)\1{2}", r"(?P<y>\d{4})/(?P=y)",
    r"(a)?(?(1)b|c)", r"(?=.*\d)(?=.*[a-z])(?=.*[!?])[a-z\d!?]{8,}", r"(?!foo)\w{3}", r"\bword\b",
    "a{2,}b{0,3}c{4}", r"(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|2[0-4]\d|1?\d?\d)){3}",
    r"[\w.+-]+@[\w-]+\.[a-z]{2,4}", "[一-龥]{2,5}", r"[\t\n]", r"\x41é", "(?:ab){50}", r"[]\-a]+", "(?s:.)*",
]  # fmt: skip
ECMA = {
    r"^\/path\/$": "/path/", r"(?<word>ab)\k<word>": "abab", r"\u{1F600}": "\U0001f600", r"\cJ": "\n",
    r"\uD83D\uDE00": "\U0001f600", r"x[]|y": "y", r"[[]a": "[a", r"^\u0041$": "A",
}  # fmt: skip
WRONG = [
    "(",
    "[a",
    "*",
    r"\e",
    "a{3,2}",
    r"\p{Sanskrit}",
    "\\",
    "(?<a",
    "a{99999999999}",
    "(?P<a>x)(?P<a>y)",
]


def matching_text(pattern: str, rng: Random, whole: bool = True) -> str:
    return Pattern(pattern).write(rng, WorkBudget(20_000), whole=whole)


NEVER = ["[]", "a^b", r"\d\b\d", "(?!)", "(?=a)b", r"[\ud800-\udfff]"]


@pytest.mark.parametrize("pattern", [*PYTHON, "foo$", "^foo", r"(?<=a)b", r"x(?=yz)"])
def test_text_generated_for_a_full_or_a_partial_match_matches_the_pattern(pattern: str) -> None:
    for seed in range(15):
        assert re.search(pattern, matching_text(pattern, Random(seed), whole=False))
        assert pattern not in PYTHON or re.fullmatch(pattern, matching_text(pattern, Random(seed)))
    assert matching_text(pattern, Random(5), False) == matching_text(pattern, Random(5), False)


@pytest.mark.parametrize("pattern", ECMA)
def test_pattern_in_ecma_262_syntax_generates_the_only_matching_text(pattern: str) -> None:
    assert matching_text(pattern, Random(1)) == ECMA[pattern]


def test_text_for_a_unicode_class_contains_only_characters_of_the_class() -> None:
    assert matching_text(r"^\p{Lu}{4}$", Random(1)).isupper()
    assert matching_text(r"^[\p{L}]+$", Random(1)).isalpha()
    assert not matching_text(r"^\P{Letter}$", Random(1)).isalpha()


@pytest.mark.parametrize("pattern", NEVER)
def test_pattern_without_any_match_is_rejected(pattern: str) -> None:
    with pytest.raises(UnsatisfiableError):
        matching_text(pattern, Random(1))


LARGE = [
    "(((a{65535}){65535}){65535})", "((x?){65535}){65535}", "(" * 900 + "a" + ")" * 900, "a" * 5000,
    "(?:a|" * 800 + "b" + ")" * 800, "[a-z]{10000}",
]  # fmt: skip


@pytest.mark.parametrize("pattern", [*WRONG, *LARGE])
def test_invalid_unsupported_and_large_patterns_are_rejected(pattern: str) -> None:
    with pytest.raises(SchemaError):
        matching_text(pattern, Random(1))


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a|a)*b", "(.*)(.*)(.*)(.*)x", "(?:(?:a*)*)*b", "(a?){20}a{20}"]
)
def test_text_is_generated_for_patterns_with_heavy_backtracking(pattern: str) -> None:
    assert re.match("a*", matching_text(pattern, Random(1)))


def test_texts_generated_for_unbounded_patterns_have_at_most_32_characters() -> None:
    assert all(len(matching_text("[a-z]*", Random(seed))) <= 32 for seed in range(50))


PIECES = st.recursive(
    st.sampled_from(
        [
            "a",
            "b",
            "0",
            r"\d",
            r"\w",
            r"\s",
            ".",
            "[a-c]",
            "[^a]",
            "-",
            r"\.",
            r"\b",
            "(?=a)",
            "(?!b)",
        ]
    ),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "*?", "{0,2}"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    ),
    max_leaves=8,
)


@given(pattern=PIECES, seed=st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_text_generated_for_any_accepted_pattern_matches_the_pattern(
    pattern: str, seed: int
) -> None:
    try:
        text = matching_text(pattern, Random(seed), whole=False)
    except SchemaError:
        return
    assert re.search(pattern, text)


@given(pattern=st.text(st.sampled_from(r"ab01()[]{}*+?|^$\.,-:=!<>dwsPkp"), max_size=14))
@settings(max_examples=60, deadline=None)
def test_arbitrary_pattern_text_raises_only_schema_errors(pattern: str) -> None:
    try:
        matching_text(pattern, Random(1))
    except SchemaError:
        return
