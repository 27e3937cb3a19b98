"""Commands of `simulate` that repeat the figures of a planned fleet."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from config.declaration import COMMAND
from workbench.plan.plan_flags import make_parser
from workbench.runs.job import Job
from workbench.runs.job_flags import TRANSFER_FLAGS

PLAN_FLAGS = frozenset(
    (
        "device",
        "model_configs",
        "tensor_parallel_size",
        "max_num_seqs",
        "max_num_batched_tokens",
        "prefill_share",
        "rate",
        "trace",
        "study",
        "accept_study",
        "attainment",
        "confidence",
        "together",
        "why",
        "over_time",
        "max_pods",
        "plot",
        "backend",
        "json",
        "processes",
    )
)
"""Flags of plan alone, or with values that differ from fleet to fleet."""


def shared_words(argv: Sequence[str]) -> tuple[str, ...]:
    """Returns the words of a `plan` command that are the same for all its simulations."""
    return tuple(word for name, words in _flags(argv) if name not in PLAN_FLAGS for word in words)


def _flags(argv: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yields each flag with its words: the name of its value, or of the setting of a plugin."""
    actions = make_parser()._option_string_actions
    name = ""
    words: list[str] = []
    for word in argv:
        form = word.partition("=")[0]
        action = actions.get(form.replace("_", "-"))
        if action is not None or form.startswith("--"):
            if words:
                yield name, words
            name = form if action is None else action.dest
            words = []
        words.append(word)
    if words:
        yield name, words


def simulate_command(job: Job, words: Sequence[str], *, pods: int, prefill_pods: int) -> str:
    """Returns the command for a fleet; `words` are those of the load and of all fleets."""
    options = job.options
    limits = job.plan.profile.engine
    engine = ["--profile", "auto", "--device", job.device, "--model", job.model]
    if options.tensor_parallel_size > 1:
        engine += ["-tp", str(options.tensor_parallel_size)]
    engine += ["--max-num-seqs", str(limits.max_num_seqs // options.data_parallel_size)]
    tokens = limits.max_num_batched_tokens // options.parallel_batches
    engine += ["--max-num-batched-tokens", str(tokens)]
    if prefill_pods:
        decode_pods = pods - prefill_pods
        engine += ["--prefill-pods", str(prefill_pods), "--decode-pods", str(decode_pods)]
        shared = list(words)
    else:
        engine += ["--pods", str(pods)]
        shared = [
            word for name, part in _flags(words) if name not in TRANSFER_FLAGS for word in part
        ]
    if "--policy" not in shared:
        engine += ["--policy", job.plan.policy]
    return f"{COMMAND} simulate {shlex.join([*engine, *shared])}"
