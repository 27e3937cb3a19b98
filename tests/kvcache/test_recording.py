"""A real vLLM 0.32 was asked eight times; the cache does, and says, exactly what it did.

The server had blocks of 32 tokens, 66 of them, and PYTHONHASHSEED 0. What the recording shows, apart from the
hashes: events of a step are one batch; a prompt is stored when it begins to be computed; a prompt of whole
blocks that are all there re-uses all but the last, which is computed and stored once more, under the hash it
has; a hit says nothing; a block of the reply is stored in the step that brings the token behind it, so the
last token of a reply is never in the cache; a salt is in the first block only.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.kvcache.caches import small_cache
from tests.kvcache.make_facts import BLOCK_SIZE, FACTS, RECORDED, facts

BLOCKS = 66
RECORDING: list[dict[str, Any]] = json.loads(FACTS.read_text())


def replayed() -> list[dict[str, Any]]:
    """What our cache does when it is given the recorded prompts and replies."""
    cache = small_cache(BLOCKS - 1, BLOCK_SIZE)
    done, sequence = [], 0
    for number, request in enumerate(RECORDING):
        name = str(number)
        cached = cache.begin(name, cache.prompt(request["prompt"], salt=request["salt"]))
        batches = []
        for token in request["reply"]:
            assert cache.append(name, [token])
            if events := cache.take_events():
                batches.append(events)
            cache.check_integrity()
        cache.finish(name)
        assert cache.usage == 0.0
        done.append({"cached": cached, "batches": batches, "sequence": sequence})
        sequence += len(batches)
    return done


def recorded_batches(request: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """What vLLM said of a request, with the token ids, which facts.json has in prompt and reply only."""
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


@pytest.fixture(scope="module")
def ours() -> list[dict[str, Any]]:
    return replayed()


requests = pytest.mark.parametrize("number", range(len(RECORDING)), ids=[r["name"] for r in RECORDING])


@requests
def test_as_many_tokens_are_found_in_the_cache(ours: list[dict[str, Any]], number: int) -> None:
    assert ours[number]["cached"] == RECORDING[number]["cached_tokens"]


@requests
def test_every_step_has_the_same_events(ours: list[dict[str, Any]], number: int) -> None:
    assert msgspec.to_builtins(ours[number]["batches"]) == recorded_batches(RECORDING[number])


@requests
def test_batches_are_numbered_alike(ours: list[dict[str, Any]], number: int) -> None:
    count = len(ours[number]["batches"])
    first = ours[number]["sequence"]
    assert RECORDING[number]["sequence"] == list(range(first, first + count))


@pytest.mark.shared
def test_the_facts_are_those_of_the_recording() -> None:
    assert facts(json.loads(RECORDED.read_text())) == RECORDING
