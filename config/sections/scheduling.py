"""How many requests run, how many wait, and who is next."""

from dataclasses import dataclass
from typing import Literal

from config.fields import setting
from config.rules import at_least


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulingSettings:
    """How many requests run, how many wait, and who is next."""

    max_num_seqs: int = setting(
        256, unit="sequences", help="Sequences that run at the same time.", rule=at_least(1)
    )
    max_waiting_queue_length: int = setting(
        1000,
        unit="requests",
        help="Requests that may wait for a place; beyond it the answer is 429. 0 lets none wait.",
        rule=at_least(0),
    )
    max_num_queued_reqs: int | None = setting(
        None,
        unit="sequences",
        help="Sequences that may run and wait together; beyond it the answer is 503. Empty is no limit.",
        rule=at_least(0),
    )
    scheduling_policy: Literal["fcfs", "priority"] = setting(
        "fcfs",
        help="Who is next: the request that came first, or the one with the lowest priority number.",
    )
