"""A recorded run, and the same load on the virtual clock."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from msgspec import Struct

from app.engine.batch import Batch
from app.engine.scheduler import Scheduler
from app.engine.step_cost import StepCost
from app.engine.step_loop import StepLoop
from app.fidelity.client import Client, OfflineRequest, note_moments
from app.fidelity.pod import scheduler_limits
from app.kvcache.counted import CountedBlocks
from app.load.report import twelve
from config.profile import CostConstants, EngineLimits, FrontCosts


class Recording(Struct, kw_only=True):
    """What a client saw of a run, request by request in order of arrival; seconds."""

    name: str
    arrival_s: list[float]
    """When the load wanted to send."""
    send_s: list[float]
    first_s: list[float]
    last_s: list[float]
    input_tokens: list[int]
    output_tokens: list[int]
    in_flight: int | None = None
    """Most requests that the client had under way, where the file tells."""
    notes: list[str] = []
    """What is to be known of the file."""

    def figures(self) -> list[float]:
        return twelve(self.send_s, self.first_s, self.last_s, self.output_tokens)


class Replayed(Struct):
    """What became of a recording's load in the simulation."""

    figures: list[float]
    steps: int
    idle_steps: int
    """Steps that found the device idle."""
    most_running: int
    """Sequences in the fullest step."""
    preemptions: int
    waited: int
    """Requests that the client sent later than the load wanted."""


class CountingClient(Client):
    """Writes down the moments of each request, too."""

    steps = idle_steps = most_running = 0
    _end_s = -inf

    def step_made(self, batch: Batch[OfflineRequest], start_s: float, end_s: float) -> None:
        self.steps += 1
        if start_s > self._end_s:
            self.idle_steps += 1
        self._end_s = end_s
        if batch.sequences > self.most_running:
            self.most_running = batch.sequences

    def step_over(self, batch: Batch[OfflineRequest], first_s: float, gap_s: float) -> None:
        note_moments(batch, first_s, gap_s)
        for request in batch.ends:
            self.left(request.last_s)


def play(
    load: Sequence[OfflineRequest],
    limits: EngineLimits,
    cost: CostConstants,
    front: FrontCosts,
    in_flight: int | None = None,
    turnaround_s: float = 0.0,
) -> tuple[CountingClient, Scheduler[OfflineRequest]]:
    """Write the moments of a load on the virtual clock into its requests; who sent it, and who served it."""
    client = CountingClient(load, front, in_flight, turnaround_s)
    return client, serve(client, limits, cost, front)


def serve(
    client: CountingClient, limits: EngineLimits, cost: CostConstants, front: FrontCosts
) -> Scheduler[OfflineRequest]:
    """Serve all that `client` sends, on the virtual clock; who did so."""
    scheduler: Scheduler[OfflineRequest] = Scheduler(
        scheduler_limits(limits),
        CountedBlocks(limits.num_gpu_blocks, limits.block_size, limits.enable_prefix_caching),
    )
    depth = 2 if limits.async_scheduling else 1
    StepLoop(scheduler, StepCost(cost), client, client, front.out_per_stream, depth).advance(inf)
    return scheduler


def replay(
    recording: Recording,
    limits: EngineLimits,
    cost: CostConstants,
    front: FrontCosts,
    in_flight: int | None,
    turnaround_s: float,
) -> Replayed:
    """Play the load of `recording` on the virtual clock; the client keeps at most `in_flight` under way."""
    load = [
        OfflineRequest(arrival_s, tokens, output)
        for arrival_s, tokens, output in zip(
            recording.arrival_s, recording.input_tokens, recording.output_tokens, strict=True
        )
    ]
    client, scheduler = play(load, limits, cost, front, in_flight, turnaround_s)
    return Replayed(
        figures=twelve(
            [it.send_s for it in load],
            [it.first_s for it in load],
            [it.last_s for it in load],
            recording.output_tokens,
        ),
        steps=client.steps,
        idle_steps=client.idle_steps,
        most_running=client.most_running,
        preemptions=scheduler.preemptions,
        waited=sum(it.send_s > it.arrival_s for it in load),
    )
