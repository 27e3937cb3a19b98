"""The recording's own replay agrees with us, whichever way we are started."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.conformance.recording import (
    CASES,
    ENVIRONMENT,
    FLAGS,
    MORE_CASES,
    VARIANTS,
    recorded,
    replay,
)
from tests.hostile.raw_client import get
from tests.running_server import ROOT, RunningServer, running_server

pytestmark = pytest.mark.shared

CONFIGURATIONS = ("base", "guarded", "lora", "reasoning-qwen3", "reasoning-r1", "embed", "classify")
"""Those of the recorded vLLM in the third set."""
PLAIN = "chat chat_mct chat_stream chat_stream_usage text text_stream err_no_model reqid"
"""The recorded requests for generation that ask for nothing special."""
PLAIN_FIELDS = {"model", "max_tokens", "max_completion_tokens", "stream", "stream_options"}


def all_agree(report: str) -> bool:
    agreeing, _, exchanges, *_ = report.splitlines()[-1].split()
    return agreeing == exchanges != "0"


def test_every_exchange_agrees() -> None:
    with running_server(*FLAGS, env=ENVIRONMENT) as server:
        for cases in (CASES, MORE_CASES, MORE_CASES):
            report = replay(server.url, "--cases", str(cases))
            assert all_agree(report), report


@pytest.mark.parametrize("variant", CONFIGURATIONS)
def test_every_exchange_of_a_variant_agrees(variant: str) -> None:
    """The third set. A seed, because a few exchanges need a certain letter in what is said."""
    command = [sys.executable, str(VARIANTS), "--python", sys.executable, "--variant", variant]
    env = os.environ | {"SIM_SEED": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_plain_request_goes_the_fast_way_and_no_other() -> None:
    assert {case["name"] for case in recorded() if is_plain(case)} == set(PLAIN.split())
    with running_server(*FLAGS, env=ENVIRONMENT | {"SIM_FAST_PATH": "true"}) as server:
        assert all_agree(replay(server.url, "--only", PLAIN.replace(" ", ",")))
        assert fast(server) == len(PLAIN.split())
        assert all_agree(replay(server.url))
        assert fast(server) == 2 * len(PLAIN.split())


def is_plain(case: dict[str, dict[str, object]]) -> bool:
    """By its fields alone, as anybody would read them."""
    asked, prompt = case["request"], {"/v1/chat/completions": "messages", "/v1/completions": "prompt"}
    if case["status"] != 200 or case["path"] not in prompt or not isinstance(asked, dict):
        return False
    what = asked.get(prompt[str(case["path"])])
    return asked.keys() <= PLAIN_FIELDS | set(prompt.values()) and (isinstance(what, str) or all_texts(what))


def all_texts(messages: object) -> bool:
    """Messages of a usual role and a text each."""
    return isinstance(messages, list) and all(
        isinstance(message, dict)
        and message.keys() == {"role", "content"}
        and message["role"] in ("system", "user", "assistant")
        and isinstance(message["content"], str)
        for message in messages
    )


def fast(server: RunningServer) -> int:
    """How many requests were served by the fast path."""
    text = get(server.port, "/metrics").body.decode()
    [count] = re.findall(r'^understudy_requests_total\{way="fast"\} (\S+)$', text, re.M)
    return int(float(count))
