"""The settings of the index: what stops the start, and paths for a process in another folder."""

import pytest

from app.core.settings import load
from config import ConfigError

RANKS = ("--data-parallel-size", "2")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["--kv-index-bind", "tcp://127.0.0.1:*"],
            "is wrong: must be a ZMQ address such as tcp://HOST:PORT",
        ),
        (
            ["--kv-index-bind", "tcp://*:5557", *RANKS],
            "setting kv-index-bind: 'tcp://*:5557' (flag --kv-index-bind) must be empty when",
        ),
        (
            ["--role", "indexer", *RANKS],
            "setting role: 'indexer' (flag --role) has no ranks: data-parallel-size must be 1",
        ),
    ],
)
def test_invalid_index_settings_prevent_startup_with_a_one_line_error(
    words: list[str], line: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(words, {})
    assert line in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("words", [["--kv-index-bind", "tcp://*:5557"], ["--role", "indexer"]])
def test_index_is_allowed_for_a_separately_served_rank(words: list[str]) -> None:
    load([*words, *RANKS, "--data-parallel-rank", "1"], {})
