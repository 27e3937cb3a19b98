"""`understudy dataset`, as a user runs it."""

import gzip
import io
import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest

from app.core.cli import main
from app.core.text.base import KeptTokens, TokenizerInputError
from app.core.text.huggingface import LocalTokenizer
from tests.running_server import ROOT


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def turns(*spoken: tuple[str, Any]) -> dict[str, Any]:
    return {
        "id": "1",
        "conversations": [{"from": speaker, "value": text} for speaker, text in spoken],
    }


FOR_WHOM = ("human", "For whom?"), ("gpt", "For a model that is not here.")
CONVERSATIONS = [
    turns(("human", "Who are you?"), ("gpt", "A stand-in. 🌳"), *FOR_WHOM),
    turns(("human", "No reply")),
    turns(("human", "Silence?"), ("gpt", "")),
    turns(("human", "Hi"), ("gpt", "Hello.")),
]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Done]:
    """Calls the command as its process would, in a folder and with variables of the environment."""

    def run(*argv: str, cwd: Path = ROOT, **environ: str) -> Done:
        for name in [name for name in os.environ if name.startswith("SIM_")]:
            monkeypatch.delenv(name)
        for name, text in environ.items():
            monkeypatch.setenv(name, text)
        monkeypatch.chdir(cwd)
        status = main(["dataset", *argv])
        return Done(status, *capsys.readouterr())

    return run


Run = Callable[..., Done]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "talks.json"
    path.write_text(json.dumps(CONVERSATIONS), "utf-8")
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_command_writes_a_dataset_that_the_server_reads(
    run: Run, source: Path, tmp_path: Path, tokenizer: LocalTokenizer
) -> None:
    from app.extensions.datasets.dataset import Dataset

    output = tmp_path / "new" / "replies.sqlite3"
    done = run("--input", str(source), "--output", str(output))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"{output}: 6 records of 4 conversations; left out: 1 conversations without an answered"
        " question and 2 turns of other conversations\n"
    )
    assert names(output.parent) == ["replies.md", "replies.sqlite3"]
    spoken = [("user", "Who are you?"), ("assistant", "A stand-in. 🌳"), ("user", "For whom?")]
    chat = [{"role": role, "content": text} for role, text in spoken]
    prompts = {
        "A stand-in. 🌳": tokenizer.encode_chat(chat[:1]),
        "For a model that is not here.": tokenizer.encode_chat(chat),
        "Hello.": tokenizer.encode("Hi"),
    }
    with closing(Dataset(output, "llmd", False, tokenizer)) as dataset:
        for text, ids in prompts.items():
            reply = dataset.reply(ids, (), min_tokens=1, max_tokens=100, rng=Random(1))
            assert reply is not None
            assert ("".join(reply.texts), reply.ids) == (text, tokenizer.encode(text))
    with closing(sqlite3.connect(output)) as connection:
        columns = connection.execute("SELECT name, type FROM pragma_table_info('llmd')").fetchall()
        rows = connection.execute("SELECT * FROM llmd ORDER BY id").fetchall()
    assert " ".join(map(" ".join, columns)) == (
        "id INTEGER prompt_hash BLOB gen_tokens JSON n_gen_tokens INTEGER"
    )
    assert [row[0] for row in rows] == [1, 2, 3, 4, 5, 6]
    for _, digest, text, count in rows:
        tokens = json.loads(text)
        assert (len(digest), list(tokens)) == (32, ["Tokens", "Strings"])
        assert len(tokens["Tokens"]) == len(tokens["Strings"]) == count


def test_dataset_command_accepts_variables_and_relative_paths(
    run: Run, source: Path, tmp_path: Path
) -> None:
    wrong = run(
        "--input", str(source), "--output", str(tmp_path / "x.db"), "--tokenizer", "/nowhere"
    )
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr.startswith("error: ") and "/nowhere" in wrong.stderr
    argv = ["--input", source.name, "--output", "out.sqlite3", "--max-records", "1"]
    done = run(*argv, cwd=tmp_path, SIM_DATASET_TABLE_NAME="talks")
    assert done == (0, "out.sqlite3: 4 records of 1 conversations\n", "")
    assert names(tmp_path) == ["out.md", "out.sqlite3", "talks.json"]
    page = (tmp_path / "out.md").read_text("utf-8")
    for expected in ("# out\n", "`talks.json`", "`embedded`", "| 1 |", "| 4 |", "## Table `talks`"):
        assert expected in page


@pytest.mark.parametrize("taken", ["out.sqlite3", "out.md"])
def test_existing_file_is_not_overwritten(
    run: Run, source: Path, tmp_path: Path, taken: str
) -> None:
    (tmp_path / taken).write_text("mine")
    done = run("--input", str(source), "--output", str(tmp_path / "out.sqlite3"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"error: {tmp_path / taken} already exists and will not be overwritten\n"
    assert names(tmp_path) == sorted([taken, "talks.json"])
    assert (tmp_path / taken).read_text() == "mine"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is not a JSON array of conversations"),
        (b'{"conversations": []}', "the file contains no human message with a reply"),
        (b'{"a": 1}\nx', "line 2 of the file is not valid JSON: "),
        (b"\x1f\x8b\x08", "the file cannot be decompressed: "),
        (
            json.dumps(CONVERSATIONS).encode()[:-20],
            "the file is not valid JSON: parse error: premature EOF",
        ),
        (json.dumps(CONVERSATIONS).encode() + b"x", "the file is not valid JSON: "),
        (b"[1 2]", "the file is not valid JSON: "),
        (b'["\xff"]', "the file is not valid JSON: "),
        (b"[]", "the file contains no human message with a reply"),
        (
            b'[1, {"conversations": [{"from": "system"}]}]',
            "the file contains no human message with a reply",
        ),
    ],
)
def test_invalid_dataset_input_leaves_no_partial_file(
    run: Run, tmp_path: Path, content: bytes, message: str
) -> None:
    source = tmp_path / "talks.json"
    source.write_bytes(content)
    done = run("--input", str(source), "--output", str(tmp_path / "out.sqlite3"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {source}: {message}") and done.stderr.count("\n") == 1
    assert names(tmp_path) == ["talks.json"]


@pytest.mark.parametrize(
    ("argv", "message", "status"),
    [
        ([], "the following arguments are required: --input, --output", 2),
        (["--input", "/nowhere", "--output", "{}/x.db"], "/nowhere: No such file or directory", 1),
        (["--input", "{}", "--output", "{}/x.db"], "{}: Is a directory", 1),
        (["--input", "{}/talks.json", "--output", "/dev/null/x.db"], "/dev/null: File exists", 1),
        (
            ["--input", "{}/talks.json", "--output", "{}/x.md"],
            "{}/x.md must end with .sqlite3, not",
            1,
        ),
        (
            ["--input", "a", "--output", "b", "--max-records", "0"],
            "'0' must be a whole number of at least 1",
            2,
        ),
        (
            ["--input", "a", "--output", "b", "--table-name", "a b"],
            "'a b' must consist of letters",
            1,
        ),
        (
            ["--input", "a", "--output", "b", "--prot", "1"],
            "unknown flag --prot; did you mean --port?",
            2,
        ),
    ],
)
def test_invalid_command_prints_a_one_line_error(
    run: Run, source: Path, argv: list[str], message: str, status: int
) -> None:
    folder = str(source.parent)
    done = run(*(argument.replace("{}", folder) for argument in argv))
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert message.replace("{}", folder) in done.stderr


class Picky(LocalTokenizer):
    def __init__(self, tokenizer: LocalTokenizer) -> None:
        vars(self).update(vars(tokenizer))

    def encode(
        self, text: str, add_special_tokens: bool = False, kept: KeptTokens | None = None
    ) -> list[int]:
        if "For whom" in text:
            raise TokenizerInputError("not this one")
        return super().encode(text, add_special_tokens, kept)


def test_dataset_conversation_ends_before_a_rejected_turn(
    tokenizer: LocalTokenizer,
) -> None:
    from app.extensions.datasets.command import RecordWriter

    recorder = RecordWriter(Picky(tokenizer))
    assert len(list(recorder.records(CONVERSATIONS))) == 4
    assert (recorder.conversations, recorder.rejected, recorder.rejection) == (4, 1, "not this one")


def test_conversations_are_read_from_compact_and_indented_json() -> None:
    from app.extensions.datasets.conversations import read_conversations

    items = [turns(("human", "Grüße")), {"conversations": [1.5]}, 3]
    for text in (json.dumps(items, indent=2, ensure_ascii=False), "\ufeff \n" + json.dumps(items)):
        assert list(read_conversations(io.BytesIO(text.encode()))) == items


def test_conversation_without_an_end_is_rejected_but_not_a_large_file() -> None:
    from app.extensions.datasets.conversations import DatasetError, read_conversations

    item = json.dumps(turns(("human", "x" * (1 << 20)))).encode()

    def text(count: int, end: bytes) -> io.BytesIO:
        return io.BytesIO(b"[" + (item + b",") * count + end)

    assert sum(1 for _ in read_conversations(text(20, item + b"]"))) == 21
    with pytest.raises(DatasetError, match="a conversation of the array is larger than 16 MiB"):
        list(read_conversations(text(2, b'"' + b"x" * (17 << 20))))


@pytest.mark.parametrize(
    "spoken",
    [
        [("human", "q2")],
        [("system", "x"), ("gpt", "a2"), ("human", "q3"), ("gpt", "a3")],
        [("tool", "x"), ("human", "q3"), ("gpt", "a3")],
        [("human", "q2"), ("human", "q3")],
        [("human", None), ("gpt", "a2")],
        [("human", "q2"), ("gpt", ["a2"])],
    ],
)
def test_conversation_ends_before_the_first_invalid_or_unanswered_turn(
    spoken: list[tuple[str, Any]],
) -> None:
    from app.extensions.datasets.conversations import read_conversation

    begun = ("human", "q1"), ("gpt", "a1")
    parsed = read_conversation(turns(*begun, *spoken))
    assert [exchange.question for exchange in parsed.exchanges] == ["q1"]
    assert parsed.left_out == len(spoken)


def test_invalid_dataset_conversation_yields_no_exchanges() -> None:
    from app.extensions.datasets.conversations import read_conversation

    for item in (
        None,
        [],
        {},
        {"conversations": None},
        {"conversations": [1, 2]},
        turns(("gpt", "a")),
    ):
        assert read_conversation(item).exchanges == []


@pytest.mark.parametrize("form", ["array", "lines", "gzip"])
@pytest.mark.parametrize(
    ("conversation", "question", "roles"),
    [
        (turns(("system", "Be brief."), ("human", "q"), ("gpt", "a")), "q", ["system", "user"]),
        (turns(("gpt", "late"), ("human", "q"), ("gpt", "a")), "q", ["user"]),
        (
            {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": [{"type": "text", "text": "q"}]},
                    {"role": "assistant", "content": "a"},
                ]
            },
            "q",
            ["system", "user"],
        ),
    ],
)
def test_conversations_of_all_forms_are_read(
    conversation: Any, question: str, roles: list[str], form: str
) -> None:
    from app.extensions.datasets.conversations import read_conversation, read_conversations

    text = json.dumps(conversation) + "\n\n" + json.dumps(conversation)
    if form == "array":
        text = json.dumps([conversation] * 2)
    content = text.encode()
    if form == "gzip":
        content = gzip.compress(content)
    parsed = [read_conversation(item) for item in read_conversations(io.BytesIO(content))]
    assert len(parsed) == 2
    for item in parsed:
        [exchange] = item.exchanges
        assert (exchange.question, exchange.reply) == (question, "a")
        assert [message["role"] for message in exchange.messages] == roles
