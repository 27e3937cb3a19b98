"""Small loads with vLLM's steps, so that tests need no vLLM."""

import gzip
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from fidelity.judge_steps.kinds import KINDS, make_load
from fidelity.judge_steps.load import Load, Steps

FOLDER = Path(__file__).parent / "recorded"
SEED = 73
MAX_REQUESTS = 10
LOADS_PER_KIND = 2


class Record(msgspec.Struct):
    """A load, and vLLM's steps of it."""

    load: Load
    steps: Steps


def write_records(version: str, steps_of: Callable[[Iterable[Load]], Iterator[Steps]]) -> None:
    """Writes the records of a simulated version."""
    loads = [
        make_load(SEED, number, kind, MAX_REQUESTS)
        for kind in KINDS
        for number in range(LOADS_PER_KIND)
    ]
    lines = []
    for load, steps in zip(loads, steps_of(loads), strict=True):
        steps.seconds = 0.0
        lines.append(msgspec.json.encode(Record(load, steps)) + b"\n")
    FOLDER.mkdir(exist_ok=True)
    _file_of(version).write_bytes(gzip.compress(b"".join(lines), mtime=0))


def read_records(version: str) -> list[Record]:
    """Returns the records of a simulated version."""
    lines = gzip.decompress(_file_of(version).read_bytes()).splitlines()
    return [msgspec.json.decode(line, type=Record) for line in lines]


def _file_of(version: str) -> Path:
    return FOLDER / f"{version}.jsonl.gz"
