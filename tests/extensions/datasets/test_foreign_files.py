"""Damaged data sets are read or refused in one line."""

import gzip
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import pytest

from app.core.text.huggingface import LocalTokenizer
from app.extensions.datasets.command import DatasetJob
from app.extensions.datasets.dataset import Dataset
from app.extensions.datasets.library import DatasetError
from tests.drawn import drawn
from tests.extensions.datasets.files import PROMPT, make_file, row
from tests.hostile_files import VALUES, damaged_files, retyped_documents

SHAREGPT = {
    "id": "1",
    "conversations": [
        {"from": "human", "value": "Who are you?"},
        {"from": "gpt", "value": "A stand-in."},
    ],
}
MESSAGES = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
        {"role": "assistant", "content": "Hello."},
    ]
}


def lines_of(*documents: object) -> bytes:
    return b"".join(json.dumps(document).encode() + b"\n" for document in documents)


def array_of(*documents: object) -> bytes:
    return json.dumps(documents, indent=1).encode()


def is_made(source: Path, name: str, tokenizer: LocalTokenizer) -> bool:
    """Makes a data set of a file; returns whether it was made."""
    output = source.with_name("out.sqlite3")
    job = DatasetJob(input=source, output=output, max_conversations=100, table="llmd", model="m")
    try:
        with source.open("rb") as file:
            summary = job.build(file, tokenizer)
    except (DatasetError, OSError) as error:
        assert "\n" not in str(error), name
        assert not output.exists(), name
        return False
    assert summary.startswith(f"{output}: "), name
    assert "\n" not in summary, name
    for target in job.targets:
        target.unlink()
    return True


@pytest.mark.parametrize("form", [lines_of, array_of])
@pytest.mark.parametrize("document", [SHAREGPT, MESSAGES], ids=["sharegpt", "messages"])
@pytest.mark.parametrize("is_compressed", [False, True], ids=["plain", "gzip"])
def test_damaged_conversations_are_read_or_refused_in_one_line(
    tmp_path: Path,
    form: Any,
    document: Any,
    is_compressed: bool,
    tokenizer: LocalTokenizer,
) -> None:
    source = tmp_path / "talks"
    good = form(document, document)
    if is_compressed:
        good = gzip.compress(good)
    source.write_bytes(good)
    assert is_made(source, "good", tokenizer)
    contents = damaged_files(good)
    if not is_compressed:
        for place, changed in retyped_documents(document):
            contents[place] = form(changed, document)
    for name, content in contents.items():
        source.write_bytes(content)
        is_made(source, name, tokenizer)


@pytest.mark.parametrize("in_memory", [False, True], ids=["file", "memory"])
def test_damaged_database_is_read_or_refused_in_one_line(
    tmp_path: Path, tokenizer: LocalTokenizer, in_memory: bool
) -> None:
    path = make_file(tmp_path / "data.sqlite3", [row(PROMPT, [4, 5]), row([7], [8])])
    good = path.read_bytes()
    contents = damaged_files(good)
    for place in range(0, 100, 7):  # the header
        contents[f"byte {place}"] = good[:place] + b"\xff" + good[place + 1 :]
    for name, content in contents.items():
        path.write_bytes(content)
        for leftover in tmp_path.glob("data.sqlite3-*"):
            leftover.unlink()
        try:
            dataset = Dataset(path, "llmd", in_memory, tokenizer)
        except DatasetError as error:
            assert "\n" not in str(error), name
            continue
        with closing(dataset):
            reply = dataset.reply(PROMPT, [], 1, 9, Random(1))
            assert reply is None or reply.ids or reply.missing, name


@pytest.mark.parametrize("in_memory", [False, True], ids=["file", "memory"])
def test_rows_of_other_types_give_no_reply(
    tmp_path: Path, tokenizer: LocalTokenizer, in_memory: bool
) -> None:
    prompt_hash, tokens, count = row(PROMPT, [4, 5])
    values: list[object] = [json.dumps(value) for value in VALUES]
    for value in VALUES:
        values.append(json.dumps({"Tokens": value, "Strings": ["4 ", "5 "]}))
        values.append(json.dumps({"Tokens": [4, 5], "Strings": value}))
        values.append(json.dumps({"Tokens": [4, value], "Strings": ["4 ", value]}))
    values += [b"\xff", b"", None, 5, 1.5]
    for number, value in enumerate(drawn(values)):
        path = tmp_path / f"{number}.sqlite3"
        try:
            make_file(path, [(prompt_hash, value, count), (prompt_hash, tokens, count)])
        except sqlite3.IntegrityError:  # a column that must not be null
            assert value is None
            continue
        try:
            dataset = Dataset(path, "llmd", in_memory, tokenizer)
        except DatasetError as error:
            assert "\n" not in str(error), value
            continue
        with closing(dataset):
            for seed in range(4):
                dataset.reply(PROMPT, [], 1, 9, Random(seed))
        path.unlink()
