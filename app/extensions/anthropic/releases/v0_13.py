"""Changes of vLLM 0.13 to Messages."""

from functools import partial

from app.core.versions.change import Answer, Change
from app.extensions.anthropic.releases.v0_17 import narrow_start

PATHS = ("/v1/messages",)


CHANGES = (
    Change(
        area="Messages",
        before="The message of `message_start` has no `usage`.",
        after="The message has `usage`.",
        forms=(Answer(paths=PATHS, edit=partial(narrow_start, names=("usage",))),),
    ),
)
