"""`understudy fleet --drill`, with real pods that are killed, stopped and started again."""

import json
from pathlib import Path

import pytest

from workbench.fleet import command

DRILL = """
duration: 6s
pods: 2
rate: 2
timeout: 60s
slow-after: 59s
groups: 2
prefix-tokens: 64
reply-tokens: 4
expert-parallel: [[0, 1]]
failures:
- {action: restart, at: 1s, pod: 0, start-up: 500ms}
- {action: flap, at: 2s, pod: 1, times: 1, down: 500ms, up: 1s}
- {action: stop, at: 3s, pod: 0, for: 500ms}
- {action: stuck, at: 4s, pod: 1, for: 500ms}
- {action: partition, at: 5s, pod: 0, for: 500ms}
"""


@pytest.mark.timeout(240)  # two runs, and the starts of seven servers
def test_drill_report_accounts_for_every_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drill = tmp_path / "drill.yaml"
    drill.write_text(DRILL)
    report = tmp_path / "report.json"
    flags = ["--drill", str(drill), "--no-png", "--policies", "round-robin"]
    assert command.run([*flags, "--json", str(report)]) == 0
    assert "12 requests in 6s to 2 pods behind round-robin, seed 1" in capsys.readouterr().out
    document = json.loads(report.read_text())
    figures = document["figures"]
    assert [phase["name"] for phase in figures["phases"]][:3] == [
        "before",
        "restart 0",
        "after restart 0",
    ]
    assert sum(phase["sent"] for phase in figures["phases"]) == figures["total"]["sent"] == 12
    assert figures["total"]["answered"] + figures["total"]["lost"] == 12
    # The restart, the stop and the partition end in time for the timeout, so only connections that
    # a failure breaks are lost.
    assert set(figures["total"]["errors"]) <= {"broken answer", "status 502"}
    assert figures["total"]["answered"] == sum(figures["answered_by_pod"])

    figures["total"]["sent"] = 13
    report.write_text(json.dumps(document))
    assert command.run([*flags, "--same-as", str(report)]) == 1
    assert "total, at 0 s: sent 13 -> 12" in capsys.readouterr().out
