"""The way of a plain request through the code stays short: what docs/architecture.md says of it."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.running_server import ROOT


def test_a_short_stream_takes_few_calls_files_and_changes_and_no_room_twice() -> None:
    words = [sys.executable, str(ROOT / "scripts" / "trace_request.py"), "--summary"]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout
    figures = re.match(r"(\d+) calls, (\d+) files, (\d+) changes of file\n", told)
    assert figures is not None, told
    calls, files, changes = map(int, figures.groups())
    assert calls < 120 and files < 28 and changes < 60
    assert told.endswith("entered again before submit: none\n")
