"""What vLLM 0.22 changed in steps."""

from app.core.versions.change import Change, Rules
from app.extensions.lab.costs.version_rules import StepDefaults

CHANGES = (
    Change(
        area="Scheduler",
        before="The default of `--max-num-batched-tokens` does not depend on images and videos.",
        after="For a model that reads images as a whole, a step holds at least one video by "
        "default.",
        forms=(Rules(StepDefaults, {"holds_whole_items": False}),),
    ),
)
