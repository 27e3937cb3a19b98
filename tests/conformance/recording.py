"""Where the recording of a real vLLM lies, if anywhere, and how a server is started like the
recorded one.
"""

import subprocess
import sys

from tests.needs import RECORDING

CASES = RECORDING / "vllm-0.32" / "cases.jsonl"
MORE_CASES = RECORDING / "vllm-0.32" / "cases-2.jsonl"
"""Tool streams, structured outputs, limits of fields, odd bodies, lesser routes."""
KV_EVENTS = RECORDING / "vllm-0.32" / "kv-events-2.json"
METRICS_LOAD = RECORDING / "metrics_load.py"
REPLAY = RECORDING / "replay.py"
VARIANTS = RECORDING / "variants.py"
"""Starts the server in each recorded configuration and replays the third set."""
TOKENIZER = RECORDING / "vllm-0.32" / "tiny"
"""The recorded model's tokenizer; without it, numbers of tokens differ from the recorded ones."""

ENVIRONMENT = {"VLLM_SERVER_DEV_MODE": "1", "PYTHONHASHSEED": "0"}
SETTINGS = {
    "model": "tiny",
    "max-model-len": "2048",
    "max-num-seqs": "8",
    "enable-prompt-tokens-details": "true",
    "enable-scale-out": "true",
    **({"tokenizer": str(TOKENIZER)} if TOKENIZER.exists() else {}),
}
FLAGS = tuple(f"--{name}={value}" for name, value in SETTINGS.items())
FLAGS_WITH_EVENTS = (
    *FLAGS,
    "--enable-kvcache",
    "--block-size=32",
    "--zmq-endpoint=tcp://127.0.0.1:5757",
)
"""The recorded server published the events of its KV cache."""


def replay(url: str, *flags: str) -> str:
    command = [sys.executable, str(REPLAY), "--verbose", "--server", url, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=50, check=False).stdout
