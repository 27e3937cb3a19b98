"""Commands of `simulate` that repeat the figures of a planned fleet."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from config.declaration import COMMAND
from config.flags import FlagTable, words_of
from workbench.plan.plan_flags import make_parser
from workbench.runs.job import Job
from workbench.runs.job_flags import TRANSFER_FLAGS

PLAN_FLAGS = frozenset(
    (
        "device",
        "model",
        "tensor-parallel-size",
        "max-num-seqs",
        "max-num-batched-tokens",
        "prefill-share",
        "rate",
        "trace",
        "study",
        "accept-study",
        "attainment",
        "confidence",
        "together",
        "why",
        "over-time",
        "max-pods",
        "plot",
        "backend",
        "json",
        "processes",
    )
)
"""Flags of plan alone, or with values that differ from fleet to fleet."""


def shared_flags(argv: Sequence[str]) -> FlagTable:
    """Returns the flags of a `plan` command that are the same for all its simulations."""
    table = make_parser().table_of(argv)
    return {name: value for name, value in table.items() if name not in PLAN_FLAGS}


def simulate_command(job: Job, flags: FlagTable, *, pods: int, prefill_pods: int) -> str:
    """Returns the command for a fleet; `flags` describe the load and all fleets."""
    options = job.options
    limits = job.plan.profile.engine
    engine: FlagTable = {"profile": "auto", "device": job.device, "model": job.model}
    if options.tensor_parallel_size > 1:
        engine["tensor-parallel-size"] = str(options.tensor_parallel_size)
    engine["max-num-seqs"] = str(limits.max_num_seqs // options.data_parallel_size)
    tokens = limits.max_num_batched_tokens // options.parallel_batches
    engine["max-num-batched-tokens"] = str(tokens)
    shared = dict(flags)
    if prefill_pods:
        engine["prefill-pods"] = str(prefill_pods)
        engine["decode-pods"] = str(pods - prefill_pods)
    else:
        engine["pods"] = str(pods)
        for name in TRANSFER_FLAGS:
            shared.pop(name.replace("_", "-"), None)
    shared.setdefault("policy", job.plan.policy)
    return f"{COMMAND} simulate {shlex.join(words_of({**engine, **shared}))}"
