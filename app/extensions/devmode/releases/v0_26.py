"""Changes of vLLM 0.26 to the routes for developers."""

from app.core.versions.change import Answer, Change

CHANGES = (
    Change(
        area="Development",
        before="`/reset_prefix_cache` answers with an empty body.",
        after="It answers with `success`.",
        forms=(Answer(paths=("/reset_prefix_cache",), empty=True),),
    ),
)
