"""Changes of vLLM 0.14 to steps."""

from app.core.versions.change import Change, Default

CHANGES = (
    Change(
        area="Scheduler",
        before="Steps are scheduled one after the other.",
        after="A step is scheduled while the one before it runs (`--async-scheduling`).",
        forms=(Default(option="async-scheduling", before="off", after="on"),),
    ),
)
