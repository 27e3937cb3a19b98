"""The tier in host memory does what vLLM's manager of offloaded chunks has done (`recorded/`)."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from app.extensions.kv_offload.cpu_tier import Access, CpuTier

FOLDER = Path(__file__).parent / "recorded"
CASES = sorted(path.stem for path in FOLDER.glob("*.json"))


class Replay:
    """Repeats the operations of a file on a tier."""

    def __init__(self, case: dict[str, Any]) -> None:
        self.tier = CpuTier(case["chunks"], case["policy"], case["threshold"])
        self.requests: dict[int, tuple[Access, list[bytes]]] = {}
        self.pending: list[tuple[str, Sequence[bytes]]] = []

    def repeat(self, entry: dict[str, Any]) -> dict[str, Any]:
        """Repeats an operation; returns what the file should have."""
        facts = getattr(self, entry["operation"])(entry)
        events = [
            [event.medium, event.is_removal, [key.decode() for key in event.keys]]
            for event in self.tier.take_events()
        ]
        writing = self.tier.writing / self.tier.capacity
        usage = writing + self.tier.reading / self.tier.capacity
        return {**entry, **facts, "events": events, "usage": usage, "writing": writing}

    def begin(self, entry: dict[str, Any]) -> dict[str, Any]:
        """A request, which loads the leading chunks that are there."""
        keys = [name.encode() for name in entry["keys"]]
        access = self.tier.new_access()
        self.requests[entry["request"]] = access, keys
        lookups = []
        for key in keys:
            chunk = self.tier.get(key)
            state = "MISS"
            if chunk is not None:
                state = "HIT" if chunk.is_ready else "HIT_PENDING"
            lookups.append(state)
        loaded = keys[: [*lookups, "MISS"].index("MISS")]
        if "HIT_PENDING" in lookups:
            loaded = loaded[: lookups.index("HIT_PENDING")]
        if loaded:
            self.tier.hold(loaded)
            self.tier.note_load(loaded, 0, access)
            self.pending.append(("load", loaded))
        return {"lookups": lookups, "loaded": len(loaded)}

    def store(self, entry: dict[str, Any]) -> dict[str, Any]:
        """The first chunks of a request."""
        access, keys = self.requests[entry["request"]]
        stored = self.tier.prepare_store(keys[: entry["count"]], 0, access)
        if stored:
            self.pending.append(("store", stored))
        return {"stored": None if stored is None else [key.decode() for key in stored]}

    def complete(self, entry: dict[str, Any]) -> dict[str, Any]:
        """The end of a transfer."""
        kind, keys = self.pending.pop(entry["place"])
        if kind == "load":
            self.tier.release(keys)
        else:
            self.tier.complete_store(keys)
        return {}

    def reset(self, entry: dict[str, Any]) -> dict[str, Any]:
        """A reset, which forgets the transfers under way."""
        self.tier.reset()
        self.pending.clear()
        return {}

    def end(self, entry: dict[str, Any]) -> dict[str, Any]:
        """The end of a request."""
        access, _ = self.requests.pop(entry["request"])
        self.tier.finish(access)
        return {}


@pytest.mark.parametrize("name", CASES)
def test_each_recorded_operation_has_the_result_and_events_of_vllm(name: str) -> None:
    case = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    replay = Replay(case)

    for number, entry in enumerate(case["log"]):
        events = [[medium, removed, set(keys)] for medium, removed, keys in entry["events"]]
        repeated = replay.repeat(entry)
        repeated_events = [
            [medium, removed, set(keys)] for medium, removed, keys in repeated["events"]
        ]

        assert repeated_events == events, number
        assert repeated | {"events": [], "usage": 0} == entry | {"events": [], "usage": 0}, number
        assert repeated["usage"] == pytest.approx(entry["usage"]), number


def test_recordings_contain_evictions_and_stores_that_did_not_fit() -> None:
    entries = []
    for name in CASES:
        entries += json.loads((FOLDER / f"{name}.json").read_text("utf-8"))["log"]

    removals = [event for entry in entries for event in entry["events"] if event[1]]
    refused = [entry for entry in entries if entry.get("stored", ()) is None]
    assert len(CASES) == 4
    assert len(removals) > 50
    assert refused
