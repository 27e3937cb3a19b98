"""Flags by name, which commands pass to each other in place of words."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.declaration import UsageError
from config.flags import FlagParser, FlagTable, words_of


def make_parser() -> FlagParser:
    """Makes a parser with each kind of flag."""
    flags = FlagParser(prog="test", allow_abbrev=False)
    flags.add_argument("--model", "--model-config", dest="model_config")
    flags.add_argument("--tensor-parallel-size", "-tp")
    flags.add_argument("--loras", nargs="+")
    flags.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction)
    return flags


@pytest.mark.parametrize(
    ("words", "table"),
    [
        (["--model", "a", "-tp", "2"], {"model": "a", "tensor-parallel-size": "2"}),
        (
            ["--model-config=a", "--tensor_parallel_size", "2"],
            {"model": "a", "tensor-parallel-size": "2"},
        ),
        (
            ["--loras", "a=1", "b=2", "--enforce-eager"],
            {"loras": ["a=1", "b=2"], "enforce-eager": True},
        ),
        (["--no-enforce-eager"], {"enforce-eager": False}),
        (["--no_enforce_eager"], {"enforce-eager": False}),
        (["--model=--odd", "--model", "b"], {"model": "b"}),
        (["--model=-1"], {"model": "-1"}),
        (["--of-a-plugin", "3"], {"of-a-plugin": "3"}),
        (["--plugin", "a", "--model", "m", "--plugin=b"], {"plugin": ["a", "b"], "model": "m"}),
        ([], {}),
    ],
)
def test_table_has_the_long_names(words: list[str], table: FlagTable) -> None:
    assert make_parser().table_of(words) == table


@pytest.mark.parametrize(
    ("words", "size", "others"),
    [
        (["--tensor_parallel_size", "2"], "2", []),
        (["--tensor_parallel_size=_2", "--of_a_plugin"], "_2", ["--of_a_plugin"]),
        (["--", "--tensor_parallel_size"], None, ["--", "--tensor_parallel_size"]),
    ],
)
def test_flag_may_have_underscores_in_place_of_dashes(
    words: list[str], size: str | None, others: list[str]
) -> None:
    options, rest = make_parser().parse_known_args(words)
    assert options.tensor_parallel_size == size
    assert rest == others


@pytest.mark.parametrize("words", [["a"], ["a", "--model", "b"]])
def test_word_without_a_flag_is_rejected(words: list[str]) -> None:
    with pytest.raises(UsageError, match="unexpected argument 'a'"):
        make_parser().table_of(words)


VALUES = st.text(st.characters(codec="utf-8"), min_size=1)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "model": VALUES,
            "tensor-parallel-size": VALUES,
            "enforce-eager": st.booleans(),
            "loras": st.lists(
                VALUES.filter(lambda text: not text.startswith("-")), min_size=2, max_size=4
            ),
        },
    )
)
def test_words_of_a_table_have_the_same_table(table: FlagTable) -> None:
    assert make_parser().table_of(words_of(table)) == table
