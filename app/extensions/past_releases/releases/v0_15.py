"""Changes of vLLM 0.15 to errors of chats."""

from app.core.versions.change import Answer, Change
from app.extensions.past_releases.long_prompts import fail_with_cause
from app.extensions.past_releases.paths import CHATS

PATHS = (*CHATS, "/v1/messages")

CHANGES = (
    Change(
        area="Errors",
        before="The error of a conversation that is too long ends with `None`; its `param` is "
        "null.",
        after="The error ends with the field and its value; `param` is the field.",
        forms=(Answer(paths=PATHS, failure=fail_with_cause),),
    ),
)
