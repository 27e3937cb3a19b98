"""Jobs by fields: what words and files say, changes, and the command lines that repeat jobs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.declaration import COMMAND, UsageError
from config.flags import FlagTable, long_name, words_of
from workbench.runs.job_reader import read_settings, read_table, read_words
from workbench.runs.job_spec import JobSpec, field_names, flag_name
from workbench.runs.simulate_flags import make_parser

TEXTS: dict[str, st.SearchStrategy[bool | str | list[str]]] = {
    "device": st.sampled_from(["h100", "-x", "a b", ""]),
    "model": st.text(min_size=1, max_size=8).filter(lambda text: text != "--"),
    "pods": st.integers(min_value=1, max_value=9).map(str),
    "rate": st.floats(min_value=0.1, max_value=99.0).map(repr),
    "think": st.sampled_from(["1.5s", "20ms"]),
    "input-tokens": st.sampled_from(["2k", "50-100", "1000:lognormal"]),
    "enable-prefix-caching": st.booleans(),
    "goodput": st.lists(st.sampled_from(["ttft:1", "chat=tpot:5"]), min_size=1, max_size=3),
    "num-gpu-blocks-override": st.sampled_from(["4000", "4k"]),
}
TABLES = st.fixed_dictionaries({}, optional=TEXTS)


def test_fields_are_the_flags_with_their_defaults() -> None:
    defaults = vars(make_parser().parse_args([]))
    assert set(defaults) == set(field_names())
    assert {name: getattr(JobSpec(), name) for name in field_names()} == defaults
    names = {action.dest: long_name(action) for action in make_parser().actions().values()}
    assert {field: flag_name(field) for field in field_names()} == {
        dest: name for dest, name in names.items() if dest != "help"
    }


@given(TABLES)
def test_words_and_tables_describe_the_same_job(table: FlagTable) -> None:
    from_words, _ = read_words(words_of(table))
    from_table = read_table(table)
    for field in field_names():
        assert getattr(from_table, field) == getattr(from_words, field), field


@given(TABLES)
def test_command_of_a_job_describes_the_same_job(table: FlagTable) -> None:
    spec = read_table(table)
    words = shlex.split(spec.command.removeprefix(f"{COMMAND} simulate"))
    again, _ = read_words(words)
    for field in field_names():
        assert getattr(again, field) == getattr(spec, field), field


@given(TABLES, TABLES)
def test_update_replaces_what_was_written(first: FlagTable, second: FlagTable) -> None:
    updated = read_table(first).updated(read_table(second))
    assert updated == read_table({**first, **second})


def test_changed_fields_are_written() -> None:
    spec = JobSpec().changed(pods=3, rate=1.5, study=Path("s"), enable_prefix_caching=False)
    assert spec.written == ["study", "rate", "pods", "enable_prefix_caching"]
    assert spec.command == (
        f"{COMMAND} simulate --pods 3 --rate 1.5 --study s --no-enable-prefix-caching"
    )
    assert spec.without("pods", "rate", "study", "enable_prefix_caching") == JobSpec()
    assert spec.changed(rate=None).rate is None
    assert not spec.changed(rate=None).has("rate")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"pods": "x"}, "argument --pods: 'x' must be a whole number"),
        ({"pods": True}, "argument --pods: expected one argument"),
        ({"pods": False}, "unknown flag --no-pods"),
        ({"pods": [3, 4]}, "unexpected argument '4'"),
        ({"policy": "best"}, "argument --policy: invalid choice: 'best'"),
        ({"goodput": True}, "argument --goodput: expected at least one argument"),
        ({"enforce-eager": "yes"}, "unexpected argument 'yes'"),
        ({"no-enforce-eager": False}, "unknown flag --no-no-enforce-eager"),
    ],
)
def test_wrong_value_of_a_file_is_rejected_as_on_a_command_line(
    table: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        read_table(table)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("table", "texts"),
    [
        ({"max_num_seqs": 8}, {"max-num-seqs": "8"}),
        ({"model-config": "m"}, {"model": "m"}),
        ({"no-enforce-eager": True}, {"enforce-eager": False}),
        ({"help": True}, {"help": True}),
        ({"x_speed": 1}, {"x_speed": "1"}),
    ],
)
def test_names_of_a_file_may_be_other_forms_of_flags(
    table: dict[str, object], texts: FlagTable
) -> None:
    spec = read_table(table)
    assert spec.texts == texts
    assert JobSpec().updated(spec) == spec


def test_flag_of_no_plugin_is_unknown() -> None:
    with pytest.raises(UsageError, match="unknown flag --podz; did you mean --pods"):
        read_settings(read_table({"podz": "3"}))
