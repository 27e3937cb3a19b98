"""Exchanges are appended as whole lines, even if the file is replaced, cut or locked."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gevent
import pytest
from gevent.event import Event

from app.extensions.recording import writer
from app.extensions.recording.exchange import Exchange, RecordingError, bytes_of, line_of
from app.extensions.recording.writer import RecordingFile
from config.lines import MAX_LINE_BYTES
from tests.extensions.recording.recordings import HEADER, chat, exchange, exchanges_of, written
from tests.stubs import eventually


class Ended:
    """An exchange that is over; its answer is `text`."""

    method = "POST"
    target = "/v1/chat/completions"

    def __init__(self, text: str) -> None:
        self.excuse = ""
        self.settled = Event()
        self.is_released = False
        self.recorded: Exchange = exchange(chat(text), (0, text.encode()))

    def line(self, began_s: float) -> bytes:
        return line_of(self.recorded)

    def release(self) -> None:
        self.is_released = True


class Recorder:
    """A file that is recorded to, and what the recorder said."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []
        self.file = RecordingFile(path, "http://target", warn=self.warnings.append, adds=True)

    def record(self, *texts: str) -> None:
        for text in texts:
            self.put(Ended(text))
        self.file.wait()

    def put(self, exchange: Ended) -> None:
        """Puts an exchange in a greenlet, as a server does whose loop runs other requests."""
        gevent.spawn(self.file.put, exchange).get()


@contextmanager
def recorder(path: Path) -> Iterator[Recorder]:
    opened = Recorder(path)
    try:
        yield opened
    finally:
        opened.file.close()


@contextmanager
def locked_by_another(path: Path) -> Iterator[None]:
    """Holds the lock as another process does: through a file of its own."""
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def texts_of(path: Path) -> list[str]:
    return [str(exchange.answer.chunks[0].data) for exchange in exchanges_of(path)]


@pytest.mark.parametrize("whole", [True, False])
def test_unterminated_last_line_is_terminated_before_new_lines(tmp_path: Path, whole: bool) -> None:
    path = tmp_path / "r"
    last = line_of(exchange(chat("last"), (0, b"last")))[: -1 if whole else -50]
    content_before = Path(written(path, [], last)).read_bytes()
    with recorder(path) as recording:
        recording.record("new")
    new = line_of(Ended("new").recorded)
    assert path.read_bytes() == content_before + b"\n" + new


@pytest.mark.parametrize("cut", [0, 1, 40, len(HEADER) - 2])
def test_truncated_header_of_a_recording_is_rewritten(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "r"
    path.write_bytes(HEADER[:cut])
    with recorder(path) as recording:
        recording.record("new")
    assert texts_of(path) == ["new"]
    assert b'"target":"http://target"' in path.read_bytes().splitlines()[0]


def test_recorder_creates_a_new_file_after_its_file_was_moved(tmp_path: Path) -> None:
    path = tmp_path / "r"
    rotated = tmp_path / "r.1"
    with recorder(path) as recording:
        recording.record("one")
        path.rename(rotated)
        recording.record("two")
        path.write_bytes(b"")  # as copytruncate does
        recording.record("three")
        path.unlink()
        recording.record("four", "five")
    assert texts_of(rotated) == ["one"]
    assert texts_of(path) == ["four", "five"]
    assert (recording.file.written, recording.warnings) == (5, [])


def test_recorder_appends_to_a_recording_that_replaced_its_file(tmp_path: Path) -> None:
    path = tmp_path / "r"
    with recorder(path) as recording:
        recording.record("one")
        Path(written(tmp_path / "other", [exchange(chat("old"), (0, b"old"))])).rename(path)
        recording.record("two")
    assert texts_of(path) == ["old", "two"]


def test_nothing_is_appended_to_a_file_that_is_not_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "r"
    with recorder(path) as recording:
        path.unlink()
        path.write_text("mine\n")
        recording.record("one")
        path.unlink()
        recording.record("two")
    assert recording.warnings == [
        f"not kept: POST /v1/chat/completions: {path} was not recorded with understudy record --proxy"
    ]
    assert (recording.file.written, recording.file.dropped) == (1, 1)
    assert texts_of(path) == ["two"]


def test_exchanges_are_dropped_only_while_the_folder_is_missing(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    path = folder / "r"
    with recorder(path) as recording:
        path.unlink()
        folder.rmdir()
        recording.record("one")
        folder.mkdir()
        recording.record("two")
    assert recording.warnings == ["not kept: POST /v1/chat/completions: No such file or directory"]
    assert texts_of(path) == ["two"]


def test_exchanges_are_written_once_another_process_unlocks_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOCK_TIMEOUT_S", 0.05)
    path = tmp_path / "r"
    with recorder(path) as recording:
        with locked_by_another(path):
            recording.record("one", "two", "three")
            recording.record("four")
            assert (recording.file.waiting, recording.file.written) == (4, 0)
            [warning] = recording.warnings
            assert warning.startswith(f"{path}: another process has locked the file")
        eventually(lambda: recording.file.written == 4)
        recording.record("five")
    assert texts_of(path) == ["one", "two", "three", "four", "five"]
    assert recording.warnings[1:] == [f"{path}: the lock is free again; writing 4 exchanges"]


def test_closing_a_locked_recording_drops_and_counts_exchanges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOCK_TIMEOUT_S", 0.05)
    path = tmp_path / "r"
    with recorder(path) as recording, locked_by_another(path):
        recording.record("one", "two")
        recording.file.close()
        assert (recording.file.waiting, recording.file.written, recording.file.dropped) == (0, 0, 2)
    why = "not kept: POST /v1/chat/completions: another process has locked the file"
    assert recording.warnings[1:] == [why] * 2
    assert texts_of(path) == []


def test_waiting_exchanges_are_written_even_without_an_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOCK_TIMEOUT_S", 0.05)
    path = tmp_path / "r"
    with recorder(path) as recording:
        recording.file.put(Ended("one"))
        assert texts_of(path) == ["one"]
        with locked_by_another(path):
            recording.file.put(Ended("two"))
            recording.file.put(Ended("three"))
            assert (recording.file.waiting, recording.file.written) == (2, 1)
        recording.file.put(Ended("four"))
        assert texts_of(path) == ["one", "two", "three", "four"]
        with locked_by_another(path):
            recording.file.put(Ended("five"))
    assert texts_of(path) == ["one", "two", "three", "four", "five"], "the last at the end"


def test_number_of_recorded_exchanges_that_wait_to_be_written_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "LOCK_TIMEOUT_S", 0.05)
    monkeypatch.setattr(writer, "MAX_WAITING", 2)
    path = tmp_path / "r"
    surplus = Ended("surplus")
    with recorder(path) as recording:
        with locked_by_another(path):
            recording.record("one", "two")
            recording.put(surplus)
            assert recording.file.dropped == 1
        eventually(lambda: recording.file.written == 2)
    assert surplus.is_released and surplus.settled.is_set()
    assert texts_of(path) == ["one", "two"]


def test_recorder_starts_while_another_process_holds_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.extensions.recording.shared_file.LOCK_TIMEOUT_S", 0.05)
    path = Path(written(tmp_path / "r", [exchange(chat("old"), (0, b"old"))]))
    with locked_by_another(path):
        recording = Recorder(path)
    recording.record("new")
    recording.file.close()
    assert texts_of(path) == ["old", "new"]


def test_two_recorders_of_one_file_lose_no_lines_across_rotation(tmp_path: Path) -> None:
    path = tmp_path / "r"
    with recorder(path) as first, recorder(path) as second:
        for number in range(20):
            if number == 10:
                path.rename(tmp_path / "r.1")
            first.record(f"first {number}")
            second.record(f"second {number}")
            gevent.sleep(0)
    numbers = [(tmp_path / "r.1", range(10)), (path, range(10, 20))]
    for file, expected in numbers:
        assert texts_of(file) == [
            f"{name} {number}" for number in expected for name in ("first", "second")
        ]
    assert first.warnings == second.warnings == []


def test_recorder_does_not_change_a_file_that_is_not_a_recording(
    tmp_path: Path,
) -> None:
    path = tmp_path / "r"
    path.write_text("mine")
    with pytest.raises(RecordingError, match="was not recorded with"):
        Recorder(path)
    assert path.read_text() == "mine"


def test_exchange_that_no_reader_takes_is_left_out_with_a_warning(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "tape.jsonl")
    recorder.record("short", "\u00e9" * MAX_LINE_BYTES, "last")
    recorder.file.close()
    assert [len(bytes_of(kept.request.body)) < 100 for kept in exchanges_of(recorder.path)] == [
        True,
        True,
    ]
    [warning] = recorder.warnings
    assert "the exchange takes more than 16 MiB in the file" in warning


def test_exchange_of_the_largest_line_is_read_again(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path / "tape.jsonl")
    recorder.record("a" * (MAX_LINE_BYTES // 2 - 1000))
    recorder.file.close()
    assert len(exchanges_of(recorder.path)) == 1 and not recorder.warnings
