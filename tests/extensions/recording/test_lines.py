"""A recording that was cut, damaged or replaced loses only the damaged lines."""

import io
import logging
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.extensions.recording.exchange import RecordingError, line_of
from app.extensions.recording.library import Recording
from app.extensions.recording.lines import LineReader, recorded
from tests.extensions.recording.recordings import HEADER, chat, exchange, written

TEXTS = ("one", "two ünï", "three\nlines", "four")
EXCHANGES = [
    exchange(chat(text), (0, text.encode()), at_s=float(place)) for place, text in enumerate(TEXTS)
]
LINES = [line_of(recorded_exchange) for recorded_exchange in EXCHANGES]
CONTENT = HEADER + b"".join(LINES)
HALF = LINES[1][: len(LINES[1]) // 2]


def whole_lines(content: bytes) -> int:
    """Number of exchanges in `content` whose line is complete, with or without its newline."""
    end = len(HEADER)
    count = 0
    for line in LINES:
        end += len(line)
        count += len(content) >= end - 1
    return count


def read(
    content: bytes, reader: LineReader | None = None
) -> tuple[list[float], LineReader, list[str]]:
    """The moments of the exchanges that are found, which tell them apart, the reader, and its
    warnings.
    """
    warnings: list[str] = []
    reader = reader or LineReader("r", is_tolerant=True)
    reader.warn = warnings.append
    exchanges = reader.read(io.BytesIO(content), len(content))
    return [line_exchange.at_s for _, line_exchange in exchanges], reader, warnings


@settings(max_examples=300, deadline=None)
@given(st.integers(len(HEADER) - 1, len(CONTENT)))
def test_every_complete_line_of_a_truncated_recording_is_read(cut: int) -> None:
    content = CONTENT[:cut]
    moments, _, warnings = read(content)
    assert moments == [float(number) for number in range(whole_lines(content))]
    assert len(warnings) <= 1


@settings(max_examples=300, deadline=None)
@given(st.integers(len(HEADER) - 1, len(CONTENT)), st.integers(0, len(CONTENT)))
def test_growing_file_with_a_truncated_line_is_read_to_its_end(cut: int, extra: int) -> None:
    """What a reader saw of a file in the middle of a write never hides what comes next."""
    begun = CONTENT[:cut]
    first, reader, _ = read(begun)
    later, reader, _ = read(CONTENT[: max(cut, extra)], reader)
    last, _, warnings = read(CONTENT, reader)
    assert first + later + last == [float(number) for number in range(len(TEXTS))]
    assert warnings == []


@settings(max_examples=200, deadline=None)
@given(st.integers(len(HEADER), len(CONTENT)))
def test_complete_lines_of_a_recording_after_a_truncated_line_are_read(cut: int) -> None:
    """The rule of the writer: a newline comes first where there is none."""
    content = CONTENT[:cut]
    separator = b"" if content.endswith(b"\n") else b"\n"
    new = line_of(exchange(chat("new"), (0, b"new"), at_s=9.0))
    moments, _, warnings = read(content + separator + new)
    assert moments == [*(float(number) for number in range(whole_lines(content))), 9.0]
    assert len(warnings) <= 1


def test_last_line_of_a_recording_is_read_even_if_it_lacks_a_newline(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / "r", EXCHANGES[:2], LINES[2].rstrip(b"\n"))
    with closing(Recording(path)) as recording:
        assert len(recording) == 3
    assert [line_exchange.at_s for _, line_exchange in recorded(path)] == [0.0, 1.0, 2.0]
    assert caplog.records == []


def test_partial_line_of_a_recording_is_skipped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(written(tmp_path / "r", EXCHANGES[:1], HALF + b"\n" + LINES[2]))
    with caplog.at_level(logging.WARNING), closing(Recording(str(path), grows=True)) as recording:
        with path.open("ab") as file:
            file.write(LINES[3])
        recording.read_on()
        recording.read_on()
        assert len(recording) == 3
    [record] = caplog.records
    assert record.getMessage().startswith(f"{path}: line 3 is not an exchange")
    with closing(Recording(str(path))) as recording:
        assert len(recording) == 3, "a server that only replays it starts, too"


def test_truncated_line_is_skipped_with_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(written(tmp_path / "r", EXCHANGES[:1], HALF))
    with caplog.at_level(logging.WARNING), closing(Recording(str(path), grows=True)) as recording:
        recording.read_on()
        with path.open("ab") as file:
            file.write(b"\n" + LINES[2])
        recording.read_on()
        assert len(recording) == 2
    assert [record.getMessage() for record in caplog.records] == [
        f"{path}: line 3 is cut off, and left out"
    ]


@pytest.mark.parametrize(
    "damage", [b"{}\n", b"\n", b"\x00" * 40 + b"\n", b"[" * 100_000 + b"\n", b"\xff\n"]
)
def test_growing_recording_skips_lines_that_are_not_exchanges(
    tmp_path: Path, damage: bytes
) -> None:
    path = written(tmp_path / "r", EXCHANGES[:1], damage + LINES[1])
    with closing(Recording(path, grows=True)) as recording:
        assert len(recording) == 2


def test_growing_recording_skips_lines_that_are_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.extensions.recording.lines.MAX_LINE_BYTES", 1 << 12)
    path = written(tmp_path / "r", EXCHANGES[:1], b"x" * (3 << 12) + b"\n" + LINES[1])
    with closing(Recording(path, grows=True)) as recording:
        assert len(recording) == 2


@pytest.mark.parametrize("cut", [0, 1, 20, len(HEADER) - 2])
def test_growing_recording_may_have_an_incomplete_header(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "r"
    path.write_bytes(HEADER[:cut])
    with closing(Recording(str(path), grows=True)) as recording:
        assert len(recording) == 0
        path.write_bytes(CONTENT)
        recording.read_on()
        assert len(recording) == len(TEXTS)


def test_replaced_recording_is_read_again(tmp_path: Path) -> None:
    path = Path(written(tmp_path / "r", EXCHANGES[:3]))
    with closing(Recording(str(path), grows=True)) as recording:
        Path(written(tmp_path / "edited", EXCHANGES[2:])).rename(path)
        recording.read_on()
        assert len(recording) == 2
        path.unlink()
        recording.read_on()
        assert len(recording) == 0
        written(path, EXCHANGES[:1])
        recording.read_on()
        assert len(recording) == 1
        path.write_bytes(HEADER)  # as copytruncate does
        recording.read_on()
        assert len(recording) == 0


def test_recording_replaced_by_a_foreign_file_stays_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = Path(written(tmp_path / "r", EXCHANGES))
    with caplog.at_level(logging.WARNING), closing(Recording(str(path), grows=True)) as recording:
        (tmp_path / "foreign").write_text("something else, in a file that is longer\n" * 100)
        (tmp_path / "foreign").rename(path)
        for _ in range(3):
            recording.read_on()
        assert len(recording) == len(TEXTS)
    assert ["was not recorded with" in record.getMessage() for record in caplog.records] == [True]


def test_growing_recording_must_be_valid_at_startup(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("something else")
    with pytest.raises(RecordingError, match="was not recorded with"):
        Recording(str(tmp_path / "r"), grows=True)
