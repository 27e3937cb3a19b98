"""A live server on a profile and the offline simulation, given the same arrivals, tell the same moments.

What the server did is read from its traces: when each request arrived, and when its first and its last token
were due. So a busy machine, which is late in writing them, is no matter here; how late is measured by
`benchmarks.fidelity`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest
import requests
import yaml

from app.engine.core.batch import SchedulerLimits
from app.engine.core.scheduler import Scheduler
from app.engine.kvcache.block_pool import CountedBlocks
from app.lab.fidelity.pod import OfflineRequest
from config.profile import SHIPPED, Profile, read_profile
from tests.engine.loops import ClientLoop
from tests.running_server import RunningServer, running_server
from tests.tracing.collector import SERVER, Collector, Received, running_collector

FRONT_S = 1.0
"""So long that no machine is too slow to read a request before the scheduler is to see it."""
PLACES = 4
ARRIVALS: Sequence[tuple[float, int, int]] = [
    (gap_s, 20 + 150 * (number % 3), 3 + number % 9)
    for number, gap_s in enumerate(Random(5).expovariate(25) for _ in range(40))
]
"""Gap in seconds, tokens of the prompt, tokens of the reply."""


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    document = yaml.safe_load((SHIPPED / "qwen3-14b-h100.yaml").read_text())
    document["front"]["front"] = FRONT_S
    document["engine"] |= {"max-num-seqs": PLACES, "num-gpu-blocks": 80, "max-model-len": 1024}
    path = tmp_path_factory.mktemp("profile") / "slow-front.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with running_collector() as collector:
        yield collector


@pytest.fixture(scope="module")
def server(profile: Path, collector: Collector) -> Iterator[RunningServer]:
    flags = (f"--profile={profile}", "--zmq-endpoint=", f"--otlp-traces-endpoint={collector.url}")
    with running_server(*flags) as server:
        yield server


def ask(server: RunningServer, number: int, prompt: int, reply: int) -> None:
    ids = [10 + (number * 7 + place) % 500 for place in range(prompt)]
    asked = {"prompt": ids, "max_tokens": reply, "ignore_eos": True, "stream": number % 2 == 0}
    got = requests.post(f"{server.url}/v1/completions", json=asked, timeout=60)
    assert got.status_code == 200 and got.content


def lived(server: RunningServer, collector: Collector) -> list[list[Received]]:
    """Each request, and its phases `queued`, `prefill` and `decode`; in order of arrival."""
    with ThreadPoolExecutor(len(ARRIVALS)) as pool:
        sent = []
        for number, (gap_s, prompt, reply) in enumerate(ARRIVALS):
            time.sleep(gap_s)
            sent.append(pool.submit(ask, server, number, prompt, reply))
        for one in sent:
            one.result()
    spans = collector.wait_for(lambda all_: sum(it.kind == SERVER for it in all_) == len(ARRIVALS))
    found = [[whole, *_phases(whole, spans)] for whole in spans if whole.kind == SERVER]
    return sorted(found, key=lambda it: it[1].start_s)


def _phases(whole: Received, spans: Sequence[Received]) -> list[Received]:
    phases = {span.name: span for span in spans if span.parent_id == whole.span_id}
    return [phases[name] for name in ("queued", "prefill", "decode")]


def offline(load: Sequence[OfflineRequest], profile: Profile) -> None:
    """Fill in what the loop says by itself."""
    at = profile.engine
    limits = SchedulerLimits(max_num_seqs=at.max_num_seqs, max_num_batched_tokens=at.max_num_batched_tokens)
    scheduler: Scheduler[OfflineRequest] = Scheduler(limits, CountedBlocks(at.num_gpu_blocks, at.block_size))
    ClientLoop(load, scheduler, profile).advance(float("inf"))


def test_every_request_has_the_moments_of_the_simulation(
    server: RunningServer, collector: Collector, profile: Path
) -> None:
    requests_ = lived(server, collector)
    load = [
        OfflineRequest(
            queued.start_s,
            whole.told["gen_ai.usage.prompt_tokens"],
            whole.told["gen_ai.usage.completion_tokens"],
        )
        for whole, queued, *_ in requests_
    ]
    offline(load, read_profile(str(profile)))
    for request, (*_, prefill, decode) in zip(load, requests_, strict=True):
        assert prefill.end_s == pytest.approx(request.first_s, abs=1e-4)
        assert decode.end_s == pytest.approx(request.last_s, abs=1e-4)
