"""Changes of vLLM 0.22 to steps."""

from app.core.versions.change import Change

CHANGES = (
    Change(
        area="Scheduler",
        before="The default of `--max-num-batched-tokens` does not depend on images and videos.",
        after="For a model that reads images as a whole, a step holds at least one video by "
        "default.",
        options=("limit-mm-per-prompt", "mm-processor-kwargs"),
    ),
)
