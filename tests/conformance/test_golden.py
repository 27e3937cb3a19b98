"""The recording's own replay agrees with us, whichever way we are started."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conformance.recording import ENVIRONMENT, FLAGS, REPLAY, VARIABLES
from tests.running_server import RunningServer, running_gunicorn, running_server

pytestmark = pytest.mark.shared


def replayed(server: RunningServer) -> str:
    """What the replay reports of all exchanges."""
    command = [sys.executable, str(REPLAY), "--verbose", "--server", server.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False).stdout


def all_agree(report: str) -> bool:
    agreeing, _, exchanges, *_ = report.splitlines()[-1].split()
    return agreeing == exchanges != "0"


def test_every_exchange_agrees_with_flags() -> None:
    with running_server(*FLAGS, env=ENVIRONMENT) as server:
        report = replayed(server)
    assert all_agree(report), report


def test_every_exchange_agrees_with_variables() -> None:
    with running_gunicorn(env=ENVIRONMENT | VARIABLES) as server:
        report = replayed(server)
    assert all_agree(report), report
