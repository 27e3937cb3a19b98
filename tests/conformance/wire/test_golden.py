"""The recording's own replay agrees with us, whichever way we are started, as do counters after a
load.
"""

import os
import re
import subprocess
import sys

import pytest

from tests.conformance.recording import (
    CASES,
    ENVIRONMENT,
    FLAGS_WITH_EVENTS,
    METRICS_LOAD,
    MORE_CASES,
    SETTINGS,
    VARIANTS,
    replay,
)
from tests.running_server import ROOT, running_server

pytestmark = pytest.mark.shared

CONFIGURATIONS = ("base", "guarded", "lora", "reasoning-qwen3", "reasoning-r1", "embed", "classify")
"""Those of the recorded vLLM in the third set."""


def all_agree(report: str) -> bool:
    agreeing, _, exchanges, *_ = report.splitlines()[-1].split()
    return agreeing == exchanges != "0"


def test_responses_match_every_recorded_exchange_of_vllm() -> None:
    with running_server(*FLAGS_WITH_EVENTS, env=ENVIRONMENT) as server:
        for cases in (CASES, MORE_CASES, MORE_CASES):
            report = replay(server.url, "--cases", str(cases))
            assert all_agree(report), report


@pytest.mark.parametrize("variant", CONFIGURATIONS)
def test_responses_match_the_recorded_exchanges_of_each_configuration(variant: str) -> None:
    """The third set. A seed, because a few exchanges need a certain letter in what is said."""
    command = [sys.executable, str(VARIANTS), "--python", sys.executable, "--variant", variant]
    env = os.environ | {"SIM_SEED": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=55, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


LEAST = 470
"""Series that agree, of 475.

Three tell in which step the second choice of a prompt began: chance in vLLM.
"""
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


def test_number_of_metric_series_that_equal_those_of_vllm_does_not_fall() -> None:
    with running_server(
        *(f"--{name}={value}" for name, value in LOADED.items()), env=ENVIRONMENT
    ) as server:
        command = [sys.executable, str(METRICS_LOAD), "--port", str(server.port)]
        report = subprocess.run(
            command, capture_output=True, text=True, timeout=55, check=False
        ).stdout
    agreeing = re.search(r"(\d+) of 475 series agree", report)
    assert agreeing is not None and int(agreeing[1]) >= LEAST, report
