"""Lines and bars of a download, by a clock of the test's own."""

import logging

import pytest

from app.dataset.download import bar, line, lines, shown


def test_a_line_comes_for_each_tenth(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "app.dataset")
    with lines("x", 0, 1000, lambda: 1.0) as advance:
        for _ in range(100):
            advance(10)
    assert [text.split("%")[0] for text in caplog.messages] == [f"download of x: {n}0" for n in range(1, 11)]


def test_a_line_tells_share_speed_and_the_time_that_is_left() -> None:
    assert line("x", 25_000_000, 100_000_000, 5e6) == "download of x: 25% of 100.0 MB, 5.0 MB/s, 15 s left"
    assert "left" in line("x", 0, 100, 0.0)


def test_what_was_there_before_counts_for_the_share_but_not_for_the_speed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "app.dataset")
    moments = iter([0.0, 10.0])
    with lines("x", 80_000_000, 100_000_000, lambda: next(moments)) as advance:
        advance(10_000_000)
    assert caplog.messages == ["download of x: 90% of 100.0 MB, 1.0 MB/s, 10 s left"]


def test_a_terminal_gets_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with bar("x", 0, 100) as advance:
        advance(100)
    assert "100%" in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with shown("replies")(0, 10) as advance:
        advance(10)
    assert "replies" in capsys.readouterr().err
