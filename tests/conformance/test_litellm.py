"""litellm reads our answers as it reads those of vLLM. LITELLM_PYTHON names an interpreter that has it."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.running_server import RunningServer

PYTHON = os.environ.get("LITELLM_PYTHON") or (importlib.util.find_spec("litellm") and sys.executable)
PROGRAM = Path(__file__).with_name("litellm_client.py")


@pytest.mark.skipif(not PYTHON, reason="litellm is not here; see README.md")
def test_litellm_completes_streams_and_maps_errors(vllm: RunningServer) -> None:
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # it would ask the internet for prices
    done = subprocess.run(
        [str(PYTHON), "-W", "error::UserWarning", str(PROGRAM), vllm.url, "tiny"],
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["content"] == told["streamed"] != ""
    assert told["finish_reason"] == "length"
    prompt = told["usage"][0]
    assert told["usage"] == told["streamed_usage"] == [prompt, 6, prompt + 6]
    assert (told["text_tokens"], told["choices"], told["top_logprobs"]) == (6, 3, [2] * 6)
    assert (told["unknown_model"], told["wrong_value"]) == ("NotFoundError", "BadRequestError")
