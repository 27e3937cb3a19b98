"""The openai SDK, and programs that use client libraries, run with the interpreter that has them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.needs import CLIENTS_PYTHON, NODE, NODE_CLIENTS
from tests.running_server import RunningServer
from tests.sdks import openai
from vllm_understudy import Server

HERE = Path(__file__).parent
LIMIT_S = 55.0


def told_by(
    program: str, server: RunningServer | Server, *words: str, limit_s: float = LIMIT_S
) -> Any:
    """The JSON that `program` of this folder prints after it has asked `server` for model `tiny`."""
    return printed_by(program, server.url, "tiny", *words, limit_s=limit_s)


def printed_by(program: str, *words: str, limit_s: float = LIMIT_S) -> Any:
    """The JSON that `program` of this folder prints with these arguments."""
    return _printed([str(CLIENTS_PYTHON), str(HERE / program), *words], limit_s)


def told_by_node(program: str, server: RunningServer) -> Any:
    """The JSON that `program` of the folder `node` prints, as `told_by`."""
    return _printed(
        [str(NODE), str(HERE / "node" / program), str(NODE_CLIENTS), server.url, "tiny"]
    )


def _printed(command: list[str], limit_s: float = LIMIT_S) -> Any:
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
    done = subprocess.run(
        command,
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def openai_client(
    server: RunningServer | Server, strict: bool = True, api_key: str = "x", max_retries: int = 0
) -> openai.OpenAI:
    """A client that asks again `max_retries` times; a strict one refuses what the SDK's models do
    not fit.
    """
    return openai.OpenAI(
        base_url=server.url + "/v1",
        api_key=api_key,
        max_retries=max_retries,
        timeout=20,
        _strict_response_validation=strict,
    )
