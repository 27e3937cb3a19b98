"""Changes of vLLM 0.22 to chats and completions."""

from typing import Any

from app.core.server.http.errors import ApiError, internal
from app.core.versions.change import Answer, Change, Rules
from app.extensions.past_releases.paths import GENERATING

EVENT_RULES = "app.core.engine.kvcache.publishing.EventRules"


def fail_without_words(error: ApiError, request: Any) -> ApiError | None:
    """Returns the error of an empty bad word, at which the engine fails."""
    if error.message.startswith("bad_words cannot contain an empty string"):
        return internal("")
    return None


CHANGES = (
    Change(
        area="Chat and completions",
        before="An empty string in `bad_words` fails with 500, without words.",
        after="It fails with 400.",
        forms=(Answer(paths=GENERATING, failure=fail_without_words),),
    ),
    Change(
        area="KV events",
        before="Stored blocks of KV events have neither `kv_cache_spec_kind` nor "
        "`kv_cache_spec_sliding_window`.",
        after="Stored blocks have these fields.",
        forms=(Rules(EVENT_RULES, {"layout": "0.20"}),),
        options=("kv-events-config",),
    ),
)
