"""examples/autoscaling: a real Prometheus, the HPA's formula and our pods, up and down."""

import subprocess
import sys

import pytest

from tests.running_server import ROOT


@pytest.mark.prometheus
@pytest.mark.timeout(130)  # it starts seven processes, beside a busy machine
def test_autoscaling_example_passes_its_own_test() -> None:
    options = ("-n", "0", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *options, "examples/autoscaling"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
