"""One small fleet for all tests that need a real one: starting it takes a few seconds."""

from argparse import Namespace
from collections.abc import Iterator
from random import Random

import pytest

from app.core.application import tokenizer_of
from app.core.engine.simulated.corpus import Corpus, sample_sentences
from app.core.settings import load
from tests.callbacks import ignore
from workbench.fleet.fleet import Fleet, FleetPlan, running_fleet
from workbench.fleet.fleet_flags import read_flags
from workbench.fleet.processes import Processes
from workbench.fleet.workload import Workload, make_workload

FAST = [
    "--prefill-time-per-token",
    "20us",
    "--prefill-overhead",
    "2ms",
    "--inter-token-latency",
    "0",
]


@pytest.fixture(scope="session")
def options() -> Namespace:
    flags = ["--pods", "2", "--requests", "24", "--groups", "4", "--prefix-tokens", "320"]
    return read_flags(flags)[0]


@pytest.fixture(scope="session")
def workload(options: Namespace) -> Workload:
    book = Corpus(tokenizer_of(load(())), sample_sentences())

    def compose(tokens: int, rng: Random) -> str:
        return "".join(book.compose(tokens, rng)[1])

    return make_workload(
        options.requests,
        options.groups,
        options.prefix_tokens,
        seed=options.seed,
        compose=compose,
    )


@pytest.fixture(scope="session")
def fleet(workload: Workload, options: Namespace) -> Iterator[Fleet]:
    """Two pods and an indexer. Leave them running."""
    plan = FleetPlan(
        flags=FAST,
        settings=load(FAST),
        workload=workload,
        pods=options.pods,
        seed=options.seed,
    )
    processes = Processes()
    with running_fleet(plan, processes, ignore) as fleet:
        yield fleet
