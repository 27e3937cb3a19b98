"""What vLLM 0.14 changed in steps."""

from app.core.versions.change import Change, Default, Rules
from app.extensions.lab.costs.version_rules import StepDefaults

CHANGES = (
    Change(
        area="Scheduler",
        before="Steps are scheduled one after the other.",
        after="A step is scheduled while the one before it runs (`--async-scheduling`).",
        forms=(
            Rules(StepDefaults, {"async_scheduling": False}),
            Default(option="async-scheduling", before="off", after="on"),
        ),
    ),
)
