"""Faults of a drill are those of its file."""

import pytest

from tests.running_server import ROOT
from workbench.fleet import command

EXAMPLE = ROOT / "examples" / "drills" / "ten-minutes.yaml"


def test_fault_rules_flag_is_rejected_in_a_drill(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command.run(["--drill", str(EXAMPLE), "--no-png", "--fault-rules", "[]"]) == 2
    assert "flag --fault-rules cannot be used" in capsys.readouterr().err
