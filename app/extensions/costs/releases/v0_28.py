"""Changes of vLLM 0.28 to steps."""

from app.core.versions.change import Change, Default

CHANGES = (
    Change(
        area="Scheduler",
        before="A step has at most 8,192 tokens by default, on devices with 70 GiB or more.",
        after="A step has at most 16,384 tokens by default, on devices with 160 GiB or more.",
        forms=(
            Default(
                option="max-num-batched-tokens",
                before="8192",
                after="16384 on devices with 160 GiB or more",
            ),
        ),
        options=("max-num-batched-tokens",),
    ),
)
