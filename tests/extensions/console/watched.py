"""An engine on a virtual clock with an observer, and the state that a page computes from frames."""

from functools import partial
from typing import Any

import msgspec

from app.core.engine.lifecycle import Lifecycle
from app.extensions.console.bars import Origin
from app.extensions.console.block_map import FREE
from app.extensions.console.frames import FIGURES, Frame, Picture, encode_event
from app.extensions.console.observer import ObservedEngine, Observer
from app.extensions.explanation.delays import DelayLog
from tests.core.engine.harness import Harness

UNIX_S = 1_795_000_000.0


def fixed_unix_time() -> float:
    return UNIX_S


class Page:
    """What a page knows of an engine: the sum of the frames that it has read."""

    def __init__(self) -> None:
        self.bars: dict[int, list[Any]] = {}
        self.phases: dict[int, list[int]] = {}
        self.tokens: dict[int, int] = {}
        self.ended: dict[int, list[Any]] = {}
        self.blocks: dict[int, tuple[int, int]] = {}
        self.evicted: list[int] = []
        self.steps: list[list[float]] = []
        self.figures: dict[str, float] = {}
        self.frame: dict[str, Any] = {}
        self.ttft: list[float] = []
        """Latencies of all first tokens, in milliseconds."""
        self.itl: list[float] = []

    def take(self, item: Frame | Picture) -> None:
        message = msgspec.json.decode(encode_event("x", item).partition(b"\ndata: ")[2])
        frame = message["frame"] if isinstance(item, Picture) else message
        self.frame = frame
        self.figures = dict(zip(FIGURES, frame["figures"], strict=True))
        for row in frame.get("new", []):
            self.bars.setdefault(row[0], row)
        for number, phase, *_ in frame.get("phases", []):
            self.phases.setdefault(number, []).append(phase)
        tokens = frame.get("tokens", [])
        self.tokens |= dict(zip(tokens[::2], tokens[1::2], strict=True))
        for row in frame.get("ended", []):
            self.ended[row[0]] = row
        for name, values in (("ttft", self.ttft), ("itl", self.itl)):
            pairs = frame.get(name, [])
            for value, count in zip(pairs[::2], pairs[1::2], strict=True):
                values += [value / 10] * count
        rows = frame.get("blocks", [])
        for place in range(0, len(rows), 3):
            self.blocks[rows[place]] = rows[place + 1], rows[place + 2]
        self.evicted += frame.get("evicted", [])
        self.steps += frame.get("steps", [])

    def states(self) -> dict[int, int]:
        """The states of the blocks that are not free, by number."""
        return {block: state for block, (state, _) in self.blocks.items() if state != FREE}

    def number_of(self, request_id: str) -> int:
        return next(number for number, row in self.bars.items() if row[1] == request_id)


class WatchedEngine:
    """An observed engine and its page. `options` are passed to the harness; the observer starts at
    once, unless `seen` is false.
    """

    def __init__(self, seen: bool = True, **options: Any) -> None:
        self.harness = Harness(**options)
        engine = self.harness.engine
        self.lifecycle = Lifecycle(engine, self.harness.recorder, self.harness.cache)
        observed = ObservedEngine(
            engine, self.lifecycle, DelayLog().attach(engine), self.harness.cache
        )
        self.observer = Observer(observed, self.harness.clock.now, fixed_unix_time)
        self.page = Page()
        if seen:
            self.look()

    def look(self) -> None:
        self.observer.start()
        self.harness.observers.append(partial(self.observer.bars.watch, Origin("/v1/completions")))

    def ask(self, request_id: str, **fields: Any) -> Any:
        return self.harness.ask(request_id, **fields)

    def frame(self, seconds: float = 0.25) -> Page:
        self.harness.clock.advance(seconds)
        self.page.take(self.observer.frame())
        return self.page

    def true_states(self) -> dict[int, int]:
        """The states of the blocks that are not free in the cache, by number."""
        assert self.harness.cache is not None
        cache = self.harness.cache
        used = [block for sequence in cache.running for block in sequence.blocks]
        blocks = {block.number: block for block in (*cache.pool.free_blocks(), *used)}
        return {
            number: min(block.references, 2) + 1 if block.references else 1
            for number, block in blocks.items()
            if block.references or block.hash
        }
