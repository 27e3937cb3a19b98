"""A real vLLM 0.32 was asked eight times; the cache does, and says, exactly what it did.

The server had blocks of 32 tokens, 66 of them, and PYTHONHASHSEED 0. What the recording shows,
apart from the hashes: events of a step are one batch; a prompt is stored when it begins to be
computed; a prompt of whole blocks that are all there re-uses all but the last, which is computed
and stored once more, under the hash it has; a hit says nothing; a block of the reply is stored in
the step that brings the token behind it, so the last token of a reply is never in the cache; a salt
is in the first block only.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.needs import RECORDING as FOLDER

BLOCKS = 66
BLOCK_SIZE = 32
FACTS = Path(__file__).with_name("facts.json")
"""The recording without what it says of tokens: their first block's number stands for their ids."""
RECORDING: list[dict[str, Any]] = json.loads(FACTS.read_text())


def recorded_batches(request: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What vLLM said of a request, with the token ids, which facts.json has in prompt and reply
    only.
    """
    token_ids = request["prompt"] + request["reply"]
    batches = []
    for batch in request["batches"]:
        events = []
        for fact in batch:
            event = dict(fact)
            start = event.pop("first_block") * BLOCK_SIZE
            end = start + len(event["block_hashes"]) * BLOCK_SIZE
            events.append(event | {"token_ids": token_ids[start:end]})
        batches.append(events)
    return batches


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
                [
                    _fact(event, request["prompt"] + request["out_tokens"])
                    for event in message["batch"][1]
                ]
                for message in request["events"]
            ],
        }
        for request in recorded
    ]


def _fact(event: dict[str, Any], token_ids: list[int]) -> dict[str, Any]:
    ids = event.pop("token_ids")
    starts = range(0, len(token_ids), BLOCK_SIZE)
    [first] = [
        start // BLOCK_SIZE for start in starts if token_ids[start : start + len(ids)] == ids
    ]
    return {"first_block": first, **event}


@pytest.mark.shared
def test_stored_summary_of_kv_events_matches_the_vllm_recording() -> None:
    assert facts(json.loads((FOLDER / "vllm-0.32" / "kv-events.json").read_text())) == RECORDING
