"""Replies out of real SQLite files, and out of copies of them in memory."""

import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from app.engine.dataset.dataset import Dataset, Recorded, text_hash
from app.text.huggingface import LocalTokenizer
from tests.dataset.conftest import Opener
from tests.dataset.files import PROMPT, make_file, row

UNKNOWN = [9, 9]


def reply(dataset: Dataset, most: int, least: int = 1, prompt: list[int] = PROMPT, seed: int = 1) -> Recorded:
    found = dataset.reply(prompt, (), least, most, Random(seed))
    assert found is not None
    return found


def test_a_prompt_gets_a_reply_that_was_recorded_for_it_and_fits_or_is_cut(opened: Opener) -> None:
    dataset = opened([row([5], [50, 51]), row(PROMPT, [70, 71], ["a", "b"]), row([6], [60, 61])])
    for seed in range(10):
        assert reply(dataset, 9, seed=seed) == Recorded([70, 71], ["a", "b"], 0, False)
    assert reply(dataset, 9, 5) == Recorded([70, 71], ["a", "b"], 3, False), "min_tokens"
    dataset = opened([row(PROMPT, [1] * length) for length in (2, 3, 8)])
    assert {len(reply(dataset, 5, seed=seed).ids) for seed in range(40)} == {2, 3}
    dataset = opened([row(PROMPT, [1, 2, 3, 4])])
    assert reply(dataset, 3) == Recorded([1, 2, 3], ["1 ", "2 ", "3 "], 0, True)


def test_with_ignore_eos_an_exact_reply_comes_first_then_a_longer_one_then_a_shorter_one(
    opened: Opener,
) -> None:
    dataset = opened([row(PROMPT, [length] * length) for length in (2, 4, 6)])
    assert reply(dataset, 4, 4) == Recorded([4] * 4, ["4 "] * 4, 0, True)
    assert reply(dataset, 5, 5) == Recorded([6] * 5, ["6 "] * 5, 0, True)
    shorter = {reply(dataset, 8, 8, seed=seed).missing for seed in range(40)}
    assert shorter == {2, 4, 6}
    assert reply(dataset, 8, 8).reached_limit


def test_older_files_are_found_by_the_text(opened: Opener, tokenizer: LocalTokenizer) -> None:
    turns = [("user", "Hi"), ("assistant", "Hello."), ("user", "Who are you?")]
    ids = tokenizer.encode("A stand-in.")
    old = (text_hash(turns), json.dumps(tokenizer.pieces(ids)), len(ids))
    dataset = opened([old, *(row([number], [number] * len(ids)) for number in range(20))])
    for seed in range(10):
        found = dataset.reply(UNKNOWN, turns, 1, 50, Random(seed))
        assert found is not None
        assert (found.ids, "".join(found.texts)) == (ids, "A stand-in.")


def test_a_broken_row_gives_nothing_and_one_warning(opened: Opener, caplog: pytest.LogCaptureFixture) -> None:
    """The true length counts where the column tells another."""
    dataset = opened([(row(PROMPT, [1])[0], "nonsense", 3), (*row([5], [5, 5, 5])[:2], 2)])
    with caplog.at_level(logging.WARNING):
        assert dataset.reply(PROMPT, (), 1, 5, Random(1)) is None
        assert dataset.reply(PROMPT, (), 1, 5, Random(1)) is None
    assert len(caplog.messages) == 1
    assert "gave no reply" in caplog.text and "\n" not in caplog.messages[0]
    assert reply(dataset, 2, prompt=[5]) == Recorded([5, 5], ["5 ", "5 "], 0, True)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return make_file(tmp_path / "replies.sqlite3", [row(PROMPT, [1, 2])])


def test_a_file_that_is_locked_for_a_while_and_a_row_that_has_gone_give_nothing(
    file: Path, tokenizer: LocalTokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    before = file.read_bytes()
    dataset = Dataset(file, "llmd", False, tokenizer)
    with closing(dataset), closing(sqlite3.connect(file, timeout=0, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert dataset.reply(PROMPT, (), 1, 5, Random(1)) is None
        assert "locked" in caplog.text
        other.execute("ROLLBACK")
        assert reply(dataset, 5).ids == [1, 2]
        assert file.read_bytes() == before
        assert sorted(each.name for each in file.parent.iterdir()) == [file.name]
        other.execute("DELETE FROM llmd")
        assert dataset.reply(PROMPT, (), 1, 5, Random(1)) is None


def test_a_copy_in_memory_does_not_need_the_file_any_more(file: Path, tokenizer: LocalTokenizer) -> None:
    dataset = Dataset(file, "llmd", True, tokenizer)
    file.unlink()
    with closing(dataset):
        assert reply(dataset, 5).ids == [1, 2]
