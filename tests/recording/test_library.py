"""Files that are not what they should be: one clear line each."""

from __future__ import annotations

import logging
import re
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from app.serving.recording.exchange import (
    RecordingError,
    bytes_of,
    line_of,
    read_exchange,
)
from app.serving.recording.library import Recording, check, form_of
from tests.recording.recordings import CHAT, HEADER, chat, exchange, written

ONE = exchange(chat("Hi"), (0, b"1"))
KEY = form_of("POST", CHAT, "application/json", bytes_of(ONE.request.body), False).key


@pytest.mark.parametrize(
    "content", [b"", b"\x00\x1f\x8b", b"a,b\n1,2\n", b"{}\n", b'{"format": "har", "version": 1}\n']
)
def test_what_is_no_recording_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "r").write_bytes(content)
    for read in (check, Recording):
        with pytest.raises(RecordingError, match="is no recording of python -m app record --proxy"):
            read(str(tmp_path / "r"))


def test_another_version_is_named(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(HEADER.replace(b'"version":1', b'"version":7'))
    with pytest.raises(RecordingError, match="has version 7 of the format; this is for 1"):
        check(str(tmp_path / "r"))


@pytest.mark.parametrize("cut", [1, 10, 100])
def test_a_last_line_that_was_cut_off_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, cut: int
) -> None:
    path = written(tmp_path / "r", [ONE, ONE], line_of(ONE)[:-cut])
    with caplog.at_level(logging.WARNING), closing(Recording(path)) as recording:
        assert len(recording) == 2
    assert [record.getMessage() for record in caplog.records] == [f"{path}: line 4 is cut off, and left out"]


@pytest.mark.parametrize("line", [b"{}", b"", b"[]", b'{"at_s": 0, "request": {"method": 1}}', b"\xff"])
def test_a_broken_line_in_the_midst_is_named(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "r").write_bytes(HEADER + line + b"\n" + line_of(ONE))
    with pytest.raises(RecordingError, match="line 2 is no exchange"):
        check(str(tmp_path / "r"))


def test_a_line_that_is_too_long_is_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.serving.recording.library.MOST_LINE_BYTES", 1 << 20)
    huge = line_of(exchange(b"x" * (1 << 20), (0, b"0")))
    path = tmp_path / "r"
    path.write_bytes(HEADER + huge + line_of(ONE))
    with caplog.at_level(logging.WARNING), closing(Recording(str(path))) as recording:
        assert len(recording) == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: line 2 is longer than 1 MiB, and left out"
    ]


def test_a_file_that_changes_under_its_reader_is_noticed(tmp_path: Path) -> None:
    path = Path(written(tmp_path / "r", [ONE]))
    with closing(Recording(str(path))) as recording:
        path.write_bytes(HEADER + b"x" * 50)
        with pytest.raises(RecordingError, match="line 2 has changed"):
            recording.next_answer(KEY)


def test_what_tells_how_alike_requests_are_is_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "r", [ONE])
    monkeypatch.setattr("app.serving.recording.library.MOST_LIKENESS_BYTES", 100)
    with pytest.raises(RecordingError, match="r: is too large for replay-match nearest"):
        Recording(path, alike=True)
    Recording(path).close()


def test_what_many_ask_for_is_held_once(tmp_path: Path) -> None:
    with closing(Recording(written(tmp_path / "r", [ONE]))) as recording:
        assert recording.next_answer(KEY) is recording.next_answer(KEY)


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            b'"chunks":[[-1.0,""]]',
            b'"chunks":[[1e7,""]]',
            b'"chunks":[[0.0,{"base64":"?"}]]',
            b'"chunks":{}',
        ),
        *(b'"status":7', b'"end_s":1e300', b'"head_s":-1'),
    ],
)
def test_a_line_whose_answer_is_none_is_named(tmp_path: Path, wrong: bytes) -> None:
    name = wrong.partition(b":")[0]
    line = re.sub(name + rb":(?:\[\[.*?\]\]|[\d.]+)", lambda _: wrong, line_of(ONE))
    assert wrong in line
    (tmp_path / "r").write_bytes(HEADER + line)
    with pytest.raises(RecordingError, match="line 2 is no exchange"):
        check(str(tmp_path / "r"))


@settings(max_examples=50, deadline=None)
@given(st.binary() | st.text().map(str.encode))
@example(b"\x1f\x8b")
def test_bytes_are_written_and_read_as_they_are(content: bytes) -> None:
    line = line_of(exchange(content, (0, content)))
    read = read_exchange(line)
    assert bytes_of(read.request.body) == bytes_of(read.answer.chunks[0].data) == content
    assert len(line) < 1000 + 5 * len(content)
