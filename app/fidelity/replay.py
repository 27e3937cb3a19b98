"""A recorded run, and the same load on the virtual clock."""

from __future__ import annotations

from array import array
from math import inf

from msgspec import Struct

from app.engine.batch import Batch
from app.fidelity.pod import Pod
from app.fidelity.prefix_blocks import GroupedRequest
from app.fidelity.simulation import Plan, simulate
from app.load.report import twelve
from app.load.trace import Load
from config.profile import Profile


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

    @property
    def load(self) -> Load:
        columns = array("d", self.arrival_s), array("i", self.input_tokens), array("i", self.output_tokens)
        return Load(self.name, *columns)

    def figures(self) -> list[float]:
        return twelve(self.send_s, self.first_s, self.last_s, self.output_tokens)


class Replayed(Struct):
    """What became of a recording's load in the simulation."""

    figures: list[float]
    idle_steps: int
    """Steps that found the device idle."""
    most_running: int
    """Sequences in the fullest step."""
    preemptions: int


def replay(recording: Recording, profile: Profile, in_flight: int | None, turnaround_s: float) -> Replayed:
    """Plays the load of `recording` on virtual time; the client keeps at most `in_flight` under way."""
    idle, end_s = 0, -inf

    def watch(pod: Pod, batch: Batch[GroupedRequest], start_s: float, step_end_s: float) -> None:
        nonlocal idle, end_s
        idle += start_s > end_s
        end_s = step_end_s

    plan = Plan(profile=profile, in_flight=in_flight, turnaround_s=turnaround_s)
    outcome = simulate(recording.load, plan, 1, lambda done: None, watch)
    return Replayed(
        figures=twelve(outcome.send_s, outcome.first_s, outcome.last_s, recording.output_tokens),
        idle_steps=idle,
        most_running=outcome.timeline.most_sequences,
        preemptions=outcome.preemptions,
    )
