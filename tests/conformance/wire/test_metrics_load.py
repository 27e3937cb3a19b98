"""After a known load the counters say what those of a real vLLM said."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.conformance.recording import ENVIRONMENT, METRICS_LOAD, SETTINGS
from tests.running_server import running_server

LEAST = 470
"""Series that agree, of 475. Three tell in which step the second choice of a prompt began: chance in vLLM."""
LOADED = {
    **SETTINGS,
    "max-model-len": "1024",
    "max-num-seqs": "4",
    "max-num-batched-tokens": "256",
    "scheduling-policy": "priority",
    "enable-kvcache": "true",
    "kv-cache-metrics": "true",
    "block-size": "32",
    "kv-cache-size": "40",
    "timing": "steps",
}


@pytest.mark.shared
def test_nearly_all_series_agree_after_a_known_load() -> None:
    with running_server(*(f"--{name}={value}" for name, value in LOADED.items()), env=ENVIRONMENT) as server:
        command = [sys.executable, str(METRICS_LOAD), "--port", str(server.port)]
        report = subprocess.run(command, capture_output=True, text=True, timeout=55, check=False).stdout
    found = re.search(r"(\d+) of 475 series agree", report)
    assert found is not None and int(found[1]) >= LEAST, report
