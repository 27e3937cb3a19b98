"""Changes of vLLM 0.11 to steps."""

from app.core.versions.change import Change

CHANGES = (
    Change(
        area="Scheduler",
        before="CUDA graphs end before the attention of each layer, which the host launches.",
        after="A step without prompts is one CUDA graph.",
    ),
)
