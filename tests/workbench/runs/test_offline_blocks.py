"""The blocks of offline simulations give the same steps as the KV cache of a server."""

from collections.abc import Mapping
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.engine.batch import Blocks
from app.core.engine.kvcache.counted_blocks import CountedBlocks
from app.core.versions.chain import PlayedVersion, played_version
from app.extensions.kv_offload.options import OffloadOptions
from fidelity.judge_steps.driving import drive
from fidelity.judge_steps.kinds import Draft, make_load
from fidelity.judge_steps.load import OFFLOAD, TOKEN_COUNT, Load, Plan, Step
from fidelity.judge_steps.our_engine import OurEngine, tier_options
from vllm_facts.version import NEWEST
from workbench.runs.kv_tiers import TieredBlocks
from workbench.runs.prefix_blocks import OfflineRequest, PrefixBlocks

VERSION = played_version(NEWEST)
KINDS = (
    "plain",
    "tight",
    "priority",
    "long",
    "whole",
    "watermark",
    "abort",
    "interval",
    "active",
)
COUNTED_KINDS = (*KINDS, "drafts")
SEED = 3
NODE_TOKENS = 24


class CountingEngine(OurEngine):
    """An engine that only counts blocks."""

    def _make_blocks(self, load: Load, version: PlayedVersion) -> Blocks[Any]:
        return CountedBlocks(load.blocks, load.block_size)


class OfflineSequence(OfflineRequest):
    """An offline request with its plan."""

    __slots__ = ("choice", "plan", "stops")


class PrefixEngine(OurEngine):
    """An engine with the blocks of a simulation; `paths` has the nodes of each prompt."""

    def __init__(self, load: Load, paths: Mapping[str, list[int]], tiers: bool) -> None:
        self._paths = paths
        self._has_tiers = tiers
        super().__init__(load, VERSION)

    def _make_blocks(self, load: Load, version: PlayedVersion) -> Blocks[Any]:
        if self._has_tiers:
            options = OffloadOptions(
                chunks=1, block_bytes=1.0, store_threshold=1_000, in_steps=True
            )
            blocks = TieredBlocks(load.blocks, load.block_size, options)
            blocks.attach(SimpleNamespace(now_s=0.0))  # type: ignore[arg-type]
            return blocks
        return PrefixBlocks(load.blocks, load.block_size)

    def _make_sequence(self, plan: Plan) -> Any:
        sequence = OfflineSequence(0.0, len(plan.prompt), plan.output_tokens, plan.request)
        sequence.plan = plan
        sequence.priority = plan.priority
        sequence.path = self._paths[plan.name]
        sequence.node_tokens = NODE_TOKENS
        sequence.prefix_tokens = len(sequence.path) * NODE_TOKENS
        return sequence


class TieredPrefixEngine(PrefixEngine):
    """An engine with the blocks of a simulation, and a tier in host memory."""

    @property
    def now_s(self) -> float:
        """Number of steps that are over, instead of the seconds of a loop."""
        return self.turn

    def _make_blocks(self, load: Load, version: PlayedVersion) -> Blocks[Any]:
        self.tiers = TieredBlocks(load.blocks, load.block_size, tier_options(load, version))
        self.tiers.attach(self)  # type: ignore[arg-type]
        return self.tiers

    def _step_over(self, due: Any) -> None:
        self.tiers.step_over()


def without_events(steps: list[Step]) -> list[Step]:
    for step in steps:
        step.events = []
    return steps


def first_difference(live: list[Step], offline: list[Step]) -> object:
    for number, (expected, step) in enumerate(zip(live, offline, strict=False)):
        if expected != step:
            return number, expected, step
    return None if len(live) == len(offline) else (len(live), len(offline))


def share_nodes(load: Load, rng: Random) -> dict[str, list[int]]:
    """Lets prompts begin with nodes of a small tree; returns the nodes of each prompt."""
    paths = {}
    for plan in load.plans:
        path: list[int] = []
        for _ in range(rng.randrange(5)):
            parent = path[-1] if path else 0
            path.append(parent * 2 + rng.randrange(1, 3))
        prefix: list[int] = []
        for node in path:
            node_rng = Random(node)
            prefix += [node_rng.randrange(TOKEN_COUNT) for _ in range(NODE_TOKENS)]
        plan.prompt = prefix + plan.prompt
        paths[plan.name] = path
    return paths


def load_of(kind: str, number: int) -> Load:
    """Returns one of the loads of a kind whose prompts share nothing."""
    loads = (make_load(SEED, candidate, kind) for candidate in count(number * 10))
    return next(load for load in loads if not load.caches_prefixes)


@pytest.mark.parametrize("kind", COUNTED_KINDS)
@pytest.mark.parametrize("number", range(4))
def test_counted_blocks_equal_the_cache_where_prompts_share_nothing(kind: str, number: int) -> None:
    load = load_of(kind, number)
    load.caches_prefixes = True
    live = without_events(drive(load, OurEngine(load, VERSION)).steps)
    offline = drive(load, CountingEngine(load, VERSION)).steps
    assert first_difference(live, offline) is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("tiers", [False, True])
def test_prefix_blocks_equal_the_cache_where_prompts_share_nodes(
    kind: str, number: int, tiers: bool
) -> None:
    load = load_of(kind, number)
    paths = share_nodes(load, Random(number))
    load.caches_prefixes = True
    load.enable_chunked_prefill = True
    load.blocks += 4 * NODE_TOKENS // load.block_size + 1
    live = without_events(drive(load, OurEngine(load, VERSION)).steps)
    offline = drive(load, PrefixEngine(load, paths, tiers)).steps
    assert first_difference(live, offline) is None


@pytest.mark.parametrize("kind", ["plain", "tight", "long", "watermark"])
def test_tiered_blocks_equal_the_tiered_cache_where_prompts_load_blocks(kind: str) -> None:
    loaded_bytes = 0.0
    for number in range(4):
        load = load_of(kind, number)
        paths = share_nodes(load, Random(number))
        load.caches_prefixes = True
        load.blocks = Draft(Random(number), load).needed_blocks + 12
        load.connector = OFFLOAD
        load.tier_chunks = 40
        live = without_events(drive(load, OurEngine(load, VERSION)).steps)
        engine = TieredPrefixEngine(load, paths, tiers=True)
        assert first_difference(live, drive(load, engine).steps) is None
        loaded_bytes += engine.tiers.counts.loaded_bytes
    assert loaded_bytes
