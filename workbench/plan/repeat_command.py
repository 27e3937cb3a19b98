"""Commands of `simulate` that repeat the figures of a planned fleet."""

from __future__ import annotations

from workbench.engine.steps import AUTO
from workbench.runs.job import Job
from workbench.runs.job_flags import TRANSFER_FLAGS
from workbench.runs.job_spec import JobSpec


def simulate_command(job: Job, shared: JobSpec, *, pods: int, prefill_pods: int) -> str:
    """Returns the command for a fleet; `shared` has the load, and the flags of all fleets."""
    options = job.options
    limits = job.plan.profile.engine
    engine = JobSpec().changed(profile=AUTO, device=job.device, model_config=job.model)
    if options.tensor_parallel_size > 1:
        engine = engine.changed(tensor_parallel_size=options.tensor_parallel_size)
    engine = engine.changed(
        max_num_seqs=limits.max_num_seqs // options.data_parallel_size,
        max_num_batched_tokens=limits.max_num_batched_tokens // options.parallel_batches,
    )
    if prefill_pods:
        engine = engine.changed(prefill_pods=prefill_pods, decode_pods=pods - prefill_pods)
    else:
        engine = engine.changed(pods=pods)
        shared = shared.without(*TRANSFER_FLAGS)
    if not shared.has("policy"):
        shared = shared.changed(policy=job.plan.policy)
    return engine.updated(shared).command
