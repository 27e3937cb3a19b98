"""Requests that share steps: a server on the virtual clock and a simulation agree."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings

from app.core.engine.batch import SchedulerLimits
from app.core.engine.kvcache.counted_blocks import CountedBlocks
from app.core.engine.scheduler import Scheduler
from app.core.engine.schedulers import make_scheduler
from app.core.engine.waiting_queue import WaitingQueue
from tests.core.engine.harness import BLOCK_TOKENS, PROFILE, START_S, moments, stepped
from tests.core.engine.test_steps import BLOCKS, REQUESTS
from tests.core.kvcache.caches import check
from tests.workbench.runs.loops import ClientLoop
from workbench.runs.pod import OfflineRequest


@settings(deadline=None)
@given(REQUESTS)
def test_live_engine_and_offline_simulation_give_the_same_token_times(
    requests: Sequence[tuple[float, int, int]],
) -> None:
    harness = stepped(blocks=BLOCKS)
    load = []
    for number, (gap_s, prompt, reply) in enumerate(requests):
        harness.clock.advance(gap_s)
        harness.ask(
            str(number),
            prompt_ids=list(range(100 * number, 100 * number + prompt)),
            max_tokens=reply,
        )
        load.append(OfflineRequest(harness.clock.now(), prompt, reply))
    harness.clock.advance(10)
    scheduler: Scheduler[OfflineRequest] = make_scheduler(
        SchedulerLimits(max_num_seqs=3, max_num_batched_tokens=8192),
        CountedBlocks(BLOCKS, BLOCK_TOKENS),
        WaitingQueue(),
    )
    loop = ClientLoop(load, scheduler, PROFILE)
    loop.advance(float("inf"))
    for number, request in enumerate(load):
        token_times = moments(harness, str(number))
        assert len(token_times) == request.output_tokens
        assert (token_times[0], token_times[-1]) == pytest.approx(
            (request.first_s - START_S, request.last_s - START_S), abs=1e-9
        )
    assert harness.metric("num_preemptions_total") == scheduler.preemptions
    assert harness.metric("iteration_tokens_total_count") == loop.steps
    assert harness.cache is not None
    check(harness.cache)
    assert harness.is_idle() and harness.metric("kv_cache_usage_perc") == 0
