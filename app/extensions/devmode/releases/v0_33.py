"""Changes of vLLM 0.33 to the routes for developers."""

from app.core.versions.change import Absent, Change

CHANGES = (
    Change(
        area="Development",
        before="`/is_scaling_elastic_ep` returns only whether the ranks are changing.",
        after="`/is_scaling_elastic_ep` also has `phase`, `epoch`, `error`, and "
        "`requested_data_parallel_size`.",
        forms=(
            Absent(
                fields=(
                    "ElasticStatus.phase",
                    "ElasticStatus.epoch",
                    "ElasticStatus.error",
                    "ElasticStatus.requested_data_parallel_size",
                )
            ),
        ),
        routes=("/is_scaling_elastic_ep",),
        options=("enable-elastic-ep",),
    ),
    Change(
        area="Development",
        before="`/start_profile` ignores `profiler_kwargs`.",
        after="`/start_profile` has the `profiler_kwargs` field, an object.",
        routes=("/start_profile",),
        options=("profiler-config",),
    ),
)
