"""Writes facts.json from a recording of a real vLLM: `python -m tests.kvcache.make_facts`.

Only numbers and names are kept. What an event says of tokens is kept as the number of its first block, as the
token ids themselves are in prompt and reply.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.needs import RECORDING

FACTS = Path(__file__).with_name("facts.json")
RECORDED = RECORDING / "vllm-0.32" / "kv-events.json"
BLOCK_SIZE = 32


def facts(recorded: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What a cache has to do with each request."""
    return [
        {
            "name": request["name"],
            "prompt": request["prompt"],
            "salt": request["extra"].get("cache_salt"),
            "reply": request["out_tokens"],
            "cached_tokens": request["usage"]["prompt_tokens_details"]["cached_tokens"],
            "sequence": [event["seq"] for event in request["events"]],
            "batches": [
                [_fact(event, request["prompt"] + request["out_tokens"]) for event in message["batch"][1]]
                for message in request["events"]
            ],
        }
        for request in recorded
    ]


def _fact(event: dict[str, Any], token_ids: list[int]) -> dict[str, Any]:
    ids = event.pop("token_ids")
    starts = range(0, len(token_ids), BLOCK_SIZE)
    [first] = [start // BLOCK_SIZE for start in starts if token_ids[start : start + len(ids)] == ids]
    return {"first_block": first, **event}


if __name__ == "__main__":
    FACTS.write_text(json.dumps(facts(json.loads(RECORDED.read_text()))) + "\n")
