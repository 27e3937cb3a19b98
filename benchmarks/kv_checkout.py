"""What the index of a checkout does in a second of CPU time: a process of its own, started in that
checkout.

`python .../benchmarks/kv_checkout.py MEASURE TOKENS BLOCKS PODS` prints the rate of one of
`MEASURES`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, MutableSequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path

Ids = MutableSequence[int]
BLOCK = 16
MODEL = "m"
KNOWN = 7 / 8
"""Share of a prompt that an earlier one began with."""
SHAPES = {
    "1 x 64 blocks": (1, 64),
    "4 x 16 blocks": (4, 16),
    "16 x 4 blocks": (16, 4),
    "16 x 1 block": (16, 1),
}
"""Events a message, and blocks an event."""
NEW_KEYS = "request keys, no prompt as any before"
SHARED_KEYS = "request keys, 7/8 of the prompt as before"
SAME_KEYS = "request keys, the same prompt again"
SCORES = "scores of a prompt"
INGEST = "events from a socket, %s a message"
MEASURES = (NEW_KEYS, SHARED_KEYS, SAME_KEYS, SCORES, *(INGEST % shape for shape in SHAPES))


def measured(root: Path, measure: str, tokens: int, blocks: int, pods: int) -> float:
    """The rate of a checkout, by its own copy of this file."""
    program = root / "benchmarks" / Path(__file__).name
    command = [sys.executable, str(program), measure, *map(str, (tokens, blocks, pods))]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    return float(done.stdout)


def per_s(call: Callable[[], object], least_s: float = 0.3) -> float:
    """How often it can be called in a second of CPU time."""
    began = time.process_time()
    calls = 0
    while time.process_time() - began < least_s:
        call()
        calls += 1
    return calls / (time.process_time() - began)


def key_calls(
    block_keys: Callable[[Ids], object], prompt: Ids
) -> Mapping[str, Callable[[], object]]:
    """What makes the keys of a prompt, by measure: one of its tokens is another each time."""
    numbers = count()

    def of_another(place: int) -> object:
        prompt[place] = next(numbers)
        return block_keys(prompt)

    return {
        NEW_KEYS: lambda: of_another(0),
        SHARED_KEYS: lambda: of_another(int(KNOWN * len(prompt))),
        SAME_KEYS: lambda: block_keys(prompt),
    }


def _measure(measure: str, tokens: int, blocks: int, pods: int) -> float:
    from app.extensions.kv_index.decoding import PodBatch
    from app.extensions.kv_index.holders import IndexedEngine
    from app.extensions.kv_index.index import Index
    from app.extensions.kv_index.memory import MemoryBackend
    from benchmarks.kv_ingest import blocks_per_s, into_index
    from benchmarks.kv_naive import Fleet

    with suppress(ImportError):  # older ones have no word for it
        from benchmarks.processes import collect_as_a_worker

        collect_as_a_worker()
    for title, (events, event_blocks) in SHAPES.items():
        if measure == INGEST % title:
            return blocks_per_s(
                into_index, blocks, events=events, event_blocks=event_blocks, pods=pods
            )
    fleet = Fleet()
    index = Index(MemoryBackend())
    prompt = fleet.tokens(tokens // BLOCK)
    if measure == SCORES:
        for pod in range(pods):
            index.ingest(
                IndexedEngine(f"pod{pod}", MODEL, 0), PodBatch(1.0, 0, [fleet.event(prompt)])
            )
        return per_s(partial(index.score, MODEL, prompt))
    return per_s(key_calls(partial(index.block_keys, MODEL), prompt)[measure])


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())
    print(_measure(sys.argv[1], *map(int, sys.argv[2:])))
