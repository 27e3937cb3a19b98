"""Five thousand odd requests to every route: none gets a 500, and none is left behind in the server.

`FUZZ_TIMES=4` makes twenty thousand of them.
"""

from __future__ import annotations

import json
from pathlib import Path

WEATHER_SCRIPT = Path(__file__).parents[2] / "examples/scripts/weather.yaml"
FAULTS = (
    {"action": "error", "status": 429, "retry_after": 1, "every": 11},
    {"action": "disconnect", "after": 2, "every": 13},
    {"action": "truncate", "every": 17},
    {"action": "malformed-chunk", "every": 19},
    {"action": "stall", "seconds": 0.05, "every": 23},
)
EVERYTHING = (
    *("--server-dev-mode", "--profiling", "--enable-scale-out", "--allow-runtime-lora-updating"),
    *("--enable-responses-store", "--force-dummy-tokenizer", "--max-model-len", "1024", "--max-loras", "4"),
)
SERVERS = {
    "generate": (700, (*EVERYTHING, "--enable-kvcache", "--kv-index")),
    "prefill and decode": (
        600,
        (
            *(*EVERYTHING, "--enable-kvcache", "--kv-connector", "nixl", "--script", str(WEATHER_SCRIPT)),
            *("--kv-cache-transfer-latency", "5ms", "--fault-rules", json.dumps(FAULTS)),
        ),
    ),
    "general way": (300, (*EVERYTHING, "--fast-path=false", "--reasoning-parser", "qwen3", "--omni")),
    "pooling": (700, (*EVERYTHING, "--task", "pooling")),
    "embed": (200, (*EVERYTHING, "--task", "embed")),
    "score": (200, (*EVERYTHING, "--task", "score")),
    "classify": (200, (*EVERYTHING, "--task", "classify")),
    "indexer": (700, ("--force-dummy-tokenizer",)),
}
"""How many requests each gets, and its flags."""
ROUNDS = [*((name, 0) for name in SERVERS), ("generate", 1), ("generate", 2)]
"""The largest is in three parts, each of which takes its time on a slow machine."""


def test_there_are_five_thousand() -> None:
    assert sum(SERVERS[name][0] for name, _ in ROUNDS) == 5000
