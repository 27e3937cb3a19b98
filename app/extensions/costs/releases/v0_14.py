"""Changes of vLLM 0.14 to steps."""

from app.core.versions.change import Change, Default, Rules

STEPS = "app.extensions.costs.version_rules.StepDefaults"

CHANGES = (
    Change(
        area="Scheduler",
        before="Steps are scheduled one after the other.",
        after="A step is scheduled while the one before it runs (`--async-scheduling`).",
        forms=(
            Rules(STEPS, {"async_scheduling": False}),
            Default(option="async-scheduling", before="off", after="on"),
        ),
    ),
)
