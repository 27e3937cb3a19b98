"""The way of a request through the code stays short: what docs/architecture.md says of it."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.running_server import ROOT

WAY = re.compile(
    r"(.*):\n(\d+) calls, (\d+) files, (\d+) changes of file\n.*\nentered again before submit: (.*)\n"
)
MOST = {
    "fast, no latency": (120, 28, 60),
    "fast, --profile": (480, 46, 270),
    "Flask, no latency": (250, 56, 145),
}
"""Calls (of --profile they depend on the clock), files, changes of file."""
INDEX = re.compile(r"(one .*):\n(\d+) calls, (\d+) files, (\d+) changes of file\n")
MOST_INDEX = {"one KV event": (70, 14, 34), "one score": (46, 11, 24)}


def test_each_way_takes_few_calls_files_and_changes_and_the_fast_one_no_room_twice() -> None:
    words = [sys.executable, str(ROOT / "scripts" / "trace_request.py"), "--summary"]
    told = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=180, check=True).stdout
    ways = {way: (tuple(map(int, figures)), again) for way, *figures, again in WAY.findall(told)}
    assert ways.keys() == MOST.keys(), told
    for way, (figures, again) in ways.items():
        assert all(figure < most for figure, most in zip(figures, MOST[way], strict=True)), told
        assert way.startswith("Flask") or again == "none"
    of_index = {way: tuple(map(int, figures)) for way, *figures in INDEX.findall(told)}
    assert of_index.keys() == MOST_INDEX.keys(), told
    for way, figures in of_index.items():
        assert all(figure < most for figure, most in zip(figures, MOST_INDEX[way], strict=True)), told
