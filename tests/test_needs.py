"""The line about tests that are skipped."""

from __future__ import annotations

from tests.needs import skipped_line


def test_each_need_is_counted_in_the_line() -> None:
    line = skipped_line([["redis", "wire"], ["redis"], ["shared"], ["parametrize"]])
    assert line.startswith("Skipped: 1 for want of the recording of a real vLLM (")
    assert line.endswith("; 2 for want of a Redis server (apt-get install redis-server).")
    assert skipped_line([["parametrize"]]) == ""
