"""Records what vLLM's manager of offloaded chunks does with the operations of `recorded/*.json`.

Run it with a Python that has vLLM 0.32; no GPU is needed:

    python tests/extensions/kv_offload/record_vllm.py

The operations are random, from the seed in each file. The script writes the result and the events
of every operation.
"""

import json
from pathlib import Path
from random import Random

from vllm.v1.kv_offload.base import LookupResult, ReqContext, make_offload_key
from vllm.v1.kv_offload.cpu.manager import CPUOffloadingManager

FOLDER = Path(__file__).parent / "recorded"
CASES = {
    "lru": {"policy": "lru", "chunks": 10, "threshold": 0, "seed": 1},
    "arc": {"policy": "arc", "chunks": 9, "threshold": 0, "seed": 2},
    "threshold": {"policy": "lru", "chunks": 9, "threshold": 2, "seed": 3},
    "arc-threshold": {"policy": "arc", "chunks": 10, "threshold": 3, "seed": 4},
}
PROMPTS = 9
MAX_CHUNKS = 6
OPERATIONS = 450
GAUGES = {
    "usage": "vllm:kv_offload_cpu_cache_usage_perc",
    "writing": "vllm:kv_offload_cpu_cache_write_usage_perc",
}


def name_of(key):
    """Returns the name of a chunk."""
    return key[:-4].decode()


class Recorder:
    """Drives a manager as vLLM's scheduler does: a request loads, stores, and ends."""

    def __init__(self, case):
        self.random = Random(case["seed"])
        self.manager = CPUOffloadingManager(
            case["chunks"],
            case["policy"],
            enable_events=True,
            store_threshold=case["threshold"],
        )
        self.requests = {}
        self.pending = []
        """Chunks under way, each with its request and direction."""
        self.log = []

    def run(self):
        """Returns the log of random operations."""
        for number in range(OPERATIONS):
            if len(self.requests) < 3:
                self.begin(number)
                continue
            kind = self.random.random()
            if kind < 0.35:
                self.store(self.random.choice(list(self.requests)))
            elif kind < 0.75:
                if self.pending:
                    self.complete(self.random.randrange(len(self.pending)))
            elif kind < 0.753:
                self.reset()
            else:
                self.end(self.random.choice(list(self.requests)))
        return self.log

    def begin(self, number):
        """Begins a request, which loads the leading chunks that are there."""
        prompt = self.random.randrange(PROMPTS)
        length = self.random.randint(1, MAX_CHUNKS)
        keys = []
        context = ReqContext(req_id=str(number))
        shared = prompt % 3
        for place in range(length):
            owner = f"s{shared}" if place < 2 else f"p{prompt}"
            key = make_offload_key(f"{owner}-{place}".encode(), 0)
            keys.append(key)
            context.set_offload_key_position(key, place + 1)
        self.manager.on_new_request(context)
        self.requests[number] = context, keys
        results = [self.manager.lookup(key, context) for key in keys]
        loaded = []
        for key, result in zip(keys, results, strict=True):
            if result is not LookupResult.HIT:
                break
            loaded.append(key)
        if loaded:
            self.manager.prepare_load(loaded, context)
            self.pending.append(("load", number, context, loaded))
        self.note(
            "begin",
            request=number,
            keys=[name_of(key) for key in keys],
            lookups=[result.name for result in results],
            loaded=len(loaded),
        )

    def store(self, number):
        """Offers the first chunks of a request."""
        context, keys = self.requests[number]
        count = self.random.randint(1, len(keys))
        output = self.manager.prepare_store(keys[:count], context)
        stored = None
        if output is not None:
            stored = [name_of(key) for key in output.keys_to_store]
            if output.keys_to_store:
                self.pending.append(("store", number, context, list(output.keys_to_store)))
        self.note("store", request=number, count=count, stored=stored)

    def complete(self, place):
        """Ends a transfer."""
        kind, number, context, keys = self.pending.pop(place)
        if kind == "load":
            self.manager.complete_load(keys, context)
        else:
            self.manager.complete_store(keys, context)
        self.note("complete", place=place)

    def reset(self):
        """Resets the tier; transfers under way are forgotten."""
        self.manager.reset_cache()
        self.pending.clear()
        self.note("reset")

    def end(self, number):
        """Ends a request."""
        context, _ = self.requests.pop(number)
        self.manager.on_request_finished(context)
        self.note("end", request=number)

    def note(self, operation, **facts):
        """Adds an operation to the log, with the events and the use of the tier after it."""
        events = [
            [event.medium.value, event.removed, [name_of(key) for key in event.keys]]
            for event in self.manager.take_events()
        ]
        values = self.manager.get_stats().data["data"]
        use = {short: values[name][()] for short, name in GAUGES.items()}
        self.log.append({"operation": operation, **facts, "events": events, **use})


def main():
    """Writes a file for each case."""
    FOLDER.mkdir(exist_ok=True)
    for name, case in CASES.items():
        log = Recorder(case).run()
        lines = ",\n".join("  " + json.dumps(entry) for entry in log)
        head = json.dumps(case)[1:-1]
        (FOLDER / f"{name}.json").write_text(f'{{{head}, "log": [\n{lines}\n]}}\n', "utf-8")


if __name__ == "__main__":
    main()
