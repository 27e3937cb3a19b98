"""Files of users are read within limits: their size, their lines, and the wait for a pipe."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from app.core.settings import load, settings_table
from config import ConfigError, streams, yaml_file
from config.files import (
    MAX_FILE_SETTING,
    MAX_FILE_VARIABLE,
    limit_files,
    max_file_bytes,
    open_file,
    read_text,
    read_whole,
)
from config.lines import check_json, read_lines
from config.yaml_file import MAX_YAML_BYTES, parse_yaml

MIB = 1 << 20


@contextmanager
def pipe_with(path: Path, *parts: bytes) -> Iterator[Path]:
    """A named pipe, into which a thread writes."""
    os.mkfifo(path)

    def write() -> None:
        with path.open("wb", buffering=0) as file:
            for part in parts:
                file.write(part)

    thread = Thread(target=write)
    thread.start()
    yield path
    thread.join(20)
    assert not thread.is_alive()


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "WRITER_TIMEOUT_S", 0.1)
    monkeypatch.setattr(streams, "PIPE_TIMEOUT_S", 0.1)


def test_file_up_to_the_limit_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"\xc3\xbc" * (MIB // 2))
    assert max_file_bytes() == 64 * MIB
    monkeypatch.setenv(MAX_FILE_VARIABLE, "1")
    assert read_whole(file) == file.read_bytes()
    assert read_text(file) == "\u00fc" * (MIB // 2)
    with file.open("ab") as opened:
        opened.write(b"x")
    with pytest.raises(OSError, match="larger than 1 MiB, the setting max-file-size-mb") as caught:
        read_whole(file)
    assert caught.value.errno == errno.EFBIG
    assert caught.value.filename == str(file)
    with pytest.raises(OSError, match=r"larger than 0\.5 MiB"):
        read_whole(file, MIB // 2)


def test_sparse_file_of_many_gigabytes_is_rejected_before_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "sparse"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)
    with pytest.raises(OSError, match="larger than 64 MiB"):
        read_whole(file)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/urandom"])
def test_device_without_an_end_is_read_up_to_the_limit(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MAX_FILE_VARIABLE, "2")
    with pytest.raises(OSError, match="larger than 2 MiB"):
        read_whole(device)
    with open_file(device) as file, pytest.raises(OSError, match=r"line \d+ is longer than"):
        for _ in read_lines(file, device, max_bytes=64):
            pass


def test_unreadable_paths_raise_os_errors_with_a_reason(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("two")
    (tmp_path / "two").symlink_to("one")
    for path, reason in (
        (tmp_path, "Is a directory"),
        (tmp_path / "missing", "No such file"),
        (tmp_path / "one", "Too many levels of symbolic links"),
        (tmp_path / ("x" * 300), "File name too long"),
        (tmp_path / "nul\0", "embedded null"),
    ):
        with pytest.raises(OSError, match=reason) as caught:
            read_whole(path)
        assert caught.value.strerror


def test_pipe_is_read_to_its_end_without_a_seek(tmp_path: Path) -> None:
    part = b"x" * 100_000 + b"\n"
    with pipe_with(tmp_path / "whole", part, part) as path:
        assert read_whole(path) == 2 * part
    with pipe_with(tmp_path / "lines", part, part) as path, open_file(path) as file:
        assert [*read_lines(file, str(path))] == [part, part]
    with pipe_with(tmp_path / "empty") as path:
        assert read_whole(path) == b""


def test_pipe_without_a_writer_is_not_waited_for_long(tmp_path: Path, short_waits: None) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no program writes to this pipe"):
        read_whole(tmp_path / "pipe")
    with pytest.raises(OSError, match="must be a regular file"):
        open_file(tmp_path / "pipe", accepts_pipes=False)


def test_silent_writer_of_a_pipe_is_not_waited_for_long(tmp_path: Path, short_waits: None) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.write(descriptor, b"one line\n")
        with pytest.raises(OSError, match=r"no data has arrived for 0\.1 s"):
            read_whole(path)
    finally:
        os.close(descriptor)


def test_lines_of_a_file_of_any_size_are_limited_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MAX_FILE_VARIABLE, "1")
    file = tmp_path / "lines"
    file.write_bytes(b"x" * 999 + b"\n")
    with file.open("ab") as opened:
        opened.write((b"y" * 999 + b"\n") * 3000)
    with open_file(file) as opened_file:
        assert sum(map(len, read_lines(opened_file, str(file)))) == 3_001_000
    with open_file(file) as opened_file, pytest.raises(OSError, match="line 1 is longer"):
        next(read_lines(opened_file, str(file), max_bytes=999))


def test_json_that_takes_far_more_memory_than_its_text_is_rejected() -> None:
    for item, count in (
        (b"{},", 100_000),
        (b"0.012345678,", 2 * MIB),
        (b'"%s",' % (b'\\"' * 99), MIB // 8),
    ):
        check_json(b"[" + item * count + b"0]", "an ordinary file")
    for item in (b"{},", b"[],", b'"a",', b"0,", b'{"a":1},'):
        count = 30 * MIB // len(item)
        with pytest.raises(OSError, match="the decoded JSON could take more than 128 MiB"):
            check_json(b"[" + item * count + b"0]", "large")


def test_yaml_file_is_limited_by_its_size_and_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yaml_file, "MAX_NODES", 5_000)  # 200,000 take ten seconds
    file = tmp_path / "file.yaml"
    file.write_bytes(b"a: " + b"x" * MAX_YAML_BYTES)
    with pytest.raises(ConfigError, match="cannot be read: larger than 4 MiB"):
        parse_yaml(str(file))
    file.write_text("- 0\n" * 5_001)
    with pytest.raises(ConfigError, match="more than 5000 values"):
        parse_yaml(str(file))


@pytest.mark.parametrize("number", ["9" * 5000, "0x" + "f" * 5000, "1" + ":59" * 400])
def test_numbers_that_python_cannot_show_are_rejected(number: str, tmp_path: Path) -> None:
    file = tmp_path / "file.yaml"
    file.write_text(f"port: {number}\n")
    with pytest.raises(ConfigError, match="line 1: a number is too long"):
        parse_yaml(str(file))
    file.write_text(f"port: 1{'0' * 400}\n")
    assert parse_yaml(str(file)) == {"port": 10**400}
    file.write_text(f"port: 0{'7' * 500}\n")  # no float
    with pytest.raises(ConfigError, match="cannot be parsed"):
        parse_yaml(str(file))


def test_limit_is_set_by_flag_or_variable_but_not_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = settings_table().by_name[MAX_FILE_SETTING]
    assert row.env == (MAX_FILE_VARIABLE,)
    assert load([f"--{MAX_FILE_SETTING}", "5"], {}).server.max_file_size_mb == 5
    monkeypatch.setenv(MAX_FILE_VARIABLE, "7")
    assert max_file_bytes() == 7 * MIB
    limit_files({MAX_FILE_SETTING: "9"})
    assert max_file_bytes() == 9 * MIB
    file = tmp_path / "config.yaml"
    file.write_text("max_file_size_mb: 5\n")
    with pytest.raises(ConfigError, match="applies to this file itself; use the flag or SIM_MAX_"):
        load(["--config", str(file)], {})


@pytest.mark.parametrize("text", ["0", "-1", "x", "16385", "9" * 5000, "1.5", "\u0663"])
def test_invalid_limit_is_reported_in_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAX_FILE_VARIABLE, text)
    with pytest.raises(ConfigError, match="setting max-file-size-mb: must be a whole number from"):
        max_file_bytes()


@pytest.mark.parametrize(
    ("text", "number"),
    [("1:30", "90"), ("8:00", "480"), ("010", "8"), ("-012", "-10"), ("1:30.5", "90.5")],
)
@pytest.mark.parametrize("line", ["a: {}", "b: [1, {}]", "{}: c"])
def test_number_that_yaml_reads_in_another_base_is_refused_with_its_line(
    tmp_path: Path, text: str, number: str, line: str
) -> None:
    file = tmp_path / "file.yaml"
    file.write_text("x: 1\n" + line.replace("{}", text) + "\n")
    with pytest.raises(ConfigError) as caught:
        parse_yaml(str(file))
    message = str(caught.value)
    assert f"{text} would be {number} in YAML 1.1" in message
    assert "line 2" in message
    file.write_text(f"x: 1\ny: '{text}'\nz: [0, 10, 1.5, 0.5, 08]\n")
    assert parse_yaml(str(file)) == {"x": 1, "y": text, "z": [0, 10, 1.5, 0.5, "08"]}
