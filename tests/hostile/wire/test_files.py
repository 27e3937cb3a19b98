"""Every command that reads a file rejects a hostile one in one line, within a limited time."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from app.core.cli import all_commands
from tests.drawn import drawn
from tests.forked_server import run_forked
from tests.present import is_present

FILE = "FILE"
"""Stands for the hostile file in a command line."""
NEW = "NEW"
"""Stands for a new file in a command line."""
TARGET = ("--target", "http://127.0.0.1:9")
PROMETHEUS = ("--prometheus", "https://127.0.0.1:9")
DUMMY = "--force-dummy-tokenizer"
LAB = "workbench_commands"
COMMANDS: Sequence[tuple[str, Sequence[str]]] = (
    (LAB, ("judge", FILE, "--journal", FILE)),
    (LAB, ("simulate", "--trace", FILE)),
    (LAB, ("simulate", "--rate", "1", "--seconds", "1", "--profile", FILE)),
    (LAB, ("plan", "--model", FILE, "--device", "H100=2", "--rate", "1", "--slo", "ttft_p99=1s")),
    (LAB, ("calibrate", FILE, "--out", NEW, "--device", "H100", "--model-config", "qwen3-8b")),
    (LAB, ("record", *TARGET, "--trace", FILE, "--out", NEW)),
    (LAB, ("fleet", "--drill", FILE)),
    (LAB, ("check", FILE)),
    (LAB, ("rehearse", "--from", "0.32", "--to", "0.33", FILE)),
    (LAB, ("rehearse", "--from", "0.32", "--to", "0.33", "--recording", FILE)),
    (LAB, ("study", "take", "--scrapes", FILE, "--out", NEW)),
    (LAB, ("study", "take", *PROMETHEUS, "--bearer-token-file", FILE, "--out", NEW)),
    (LAB, ("study", "take", *PROMETHEUS, "--ca-file", FILE, "--out", NEW)),
    (LAB, ("study", "take", *PROMETHEUS, "--serve", FILE, "--out", NEW)),
    (LAB, ("study", "compare", FILE)),
    (LAB, ("study", "replay", FILE, "--url", "http://127.0.0.1:9")),
    (LAB, ("plan", "--study", FILE, "--what-if", "pods=1")),
    ("recording", ("drift", FILE, *TARGET)),
    ("recording", ("fork", FILE, "--out", NEW)),
    ("recording", ("script", "from-recording", FILE)),
    (LAB, ("script", "import", FILE)),
    ("recording", (DUMMY, "--replay", FILE)),
    ("scripts", ("script", "check", FILE)),
    ("scripts", (DUMMY, "--script", FILE)),
    ("datasets", ("dataset", DUMMY, "--input", FILE, "--output", NEW)),
    ("", ("--config", FILE)),
    ("", (DUMMY, "--profile", FILE)),
    ("", ("--tokenizer", FILE)),
    ("", (DUMMY, "--ssl-certfile", FILE, "--ssl-keyfile", FILE)),
)
"""Command lines that read a file, with the extension of the command."""
PRESENT_COMMANDS = [words for name, words in COMMANDS if not name or is_present(name)]
WITHOUT_FILES = frozenset(
    ("completion", "generate", "init", "launch", "llm", "plugins", "run", "serve")
)
"""Commands without a file, with the settings of a server, or with packages of an extra."""
EXPECTED_FILES = 8


def hostile_files(folder: Path) -> dict[str, Path]:
    """Creates the files; some can be read for ever, and others decoded for ever."""
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")
    os.mkfifo(folder / "pipe")
    with (folder / "sparse").open("wb") as sparse:
        sparse.truncate(1 << 40)
    (folder / "latin").write_bytes(b'{"a":"\xff\xfe"}')
    (folder / "deep").write_bytes(b"[" * 100_000)
    return {
        "a device without an end": Path("/dev/zero"),
        "a folder": folder,
        "a link to itself": folder / "one",
        "a pipe without a writer": folder / "pipe",
        "a sparse file of 1 TiB": folder / "sparse",
        "a file that is not UTF-8": folder / "latin",
        "deep JSON": folder / "deep",
        "a missing file": folder / "missing",
    }


def test_each_command_that_reads_files_is_among_the_tested_ones() -> None:
    tested = {words[0] for words in PRESENT_COMMANDS}
    commands = {name.partition(" ")[0] for name in all_commands()}
    assert commands - tested == WITHOUT_FILES & commands


@pytest.mark.timeout(150)
@pytest.mark.parametrize("words", PRESENT_COMMANDS, ids=" ".join)
def test_hostile_file_is_rejected_in_one_line(words: Sequence[str], tmp_path: Path) -> None:
    files = hostile_files(tmp_path)
    assert len(files) == EXPECTED_FILES
    new = tmp_path / "new"
    for kind, file in drawn(files.items()):
        replaced = {FILE: str(file), NEW: str(new)}
        done = run_forked(*(replaced.get(word, word) for word in words), timeout_s=60)
        assert done.returncode in (1, 2), (kind, done.stdout, done.stderr)
        printed = done.stdout + done.stderr
        assert "Traceback" not in printed, (kind, printed)
        lines = [line for line in printed.splitlines() if line.startswith("error: ")]
        assert len(lines) == 1, (kind, printed)
        assert not new.exists(), kind
