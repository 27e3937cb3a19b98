"""What the page computes: its scripts run in node, without a browser."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from app.extensions.console.page import FOLDER

pytestmark = pytest.mark.node
NODE = shutil.which("node")
TESTS = Path(__file__).with_name("page.test.mjs")


def test_javascript_unit_tests_of_the_console_page_pass() -> None:
    assert NODE is not None
    run = subprocess.run(
        [NODE, "--test", str(TESTS)],
        env={**os.environ, "PAGE": str(FOLDER)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.returncode == 0, run.stdout
    assert "\n# pass 0\n" not in run.stdout and "\n# fail 0\n" in run.stdout
