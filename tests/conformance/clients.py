"""Programs that use client libraries, run with the interpreter that has them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests.needs import CLIENTS_PYTHON
from tests.running_server import RunningServer


def told_by(program: str, server: RunningServer, *options: str) -> Any:
    """The JSON that `program` of this folder prints after it has asked `server` for model `tiny`."""
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false"}
    done = subprocess.run(
        [str(CLIENTS_PYTHON), *options, str(Path(__file__).with_name(program)), server.url, "tiny"],
        env={**os.environ, **quiet},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
