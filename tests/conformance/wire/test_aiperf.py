"""aiperf counts tokens itself and finds our numbers right.

AIPERF names its program, if it is not in PATH.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.needs import AIPERF
from tests.running_server import ROOT, running_server

TOKENIZER = ROOT / "app" / "core" / "text" / "data"
REQUESTS = 24
INPUT_TOKENS = 512
OUTPUT_TOKENS = 16
ASKED = (
    *("--model", "understudy-tiny", "--streaming", "--tokenizer", str(TOKENIZER)),
    *("--isl", str(INPUT_TOKENS), "--osl", str(OUTPUT_TOKENS), "--extra-inputs", "ignore_eos:true"),
    *("--request-count", str(REQUESTS), "--concurrency", "4"),
    *("--no-gpu-telemetry", "--ui", "none"),
)
WARNINGS = ("Token Count Discrepancy", "Length Mismatch")
LATENCY = ("--time-to-first-token", "50ms", "--inter-token-latency", "10ms")


@pytest.mark.aiperf
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_aiperf_token_counts_match_the_usage_of_the_server(endpoint: str, tmp_path: Path) -> None:
    with running_server("--enable-prompt-tokens-details", *LATENCY) as server:
        done = subprocess.run(
            [str(AIPERF), "profile", "--url", server.url, "--endpoint-type", endpoint, *ASKED]
            + ["--output-artifact-dir", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [warning for warning in WARNINGS if warning in done.stdout], done.stdout
    report: dict[str, Any] = json.loads((tmp_path / "profile_export_aiperf.json").read_text())
    assert report["request_count"]["avg"] == REQUESTS
    assert not report.get("error_request_count")
    for measured, expected in (
        ("output_sequence_length", OUTPUT_TOKENS),
        ("usage_completion_tokens", OUTPUT_TOKENS),
    ):
        assert (report[measured]["min"], report[measured]["max"]) == (expected, expected)
