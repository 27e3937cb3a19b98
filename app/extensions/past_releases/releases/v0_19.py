"""Changes of vLLM 0.19 to chats and KV events."""

from typing import Any

from app.core.versions.change import Answer, Change, Rules
from app.extensions.past_releases.paths import CHATS

EVENT_RULES = "app.core.engine.kvcache.publishing.EventRules"


def narrow_deltas(answer: Any) -> None:
    """Removes the empty list of calls from texts, and the null text from calls."""
    for choice in answer.get("choices", ()):
        delta = choice.get("delta")
        if not delta or "role" in delta:
            continue
        if delta.get("tool_calls") == []:
            del delta["tool_calls"]
        elif delta.get("tool_calls") and delta.get("content", "") is None:
            del delta["content"]


CHANGES = (
    Change(
        area="Chat and completions",
        before="In streams that the parser `hermes` reads, texts have no `tool_calls`, and calls "
        "no `content`.",
        after="Texts have `tool_calls: []`, and calls `content: null`.",
        forms=(Answer(paths=CHATS, edit=narrow_deltas),),
        options=("tool-call-parser",),
    ),
    Change(
        area="KV events",
        before="Extra keys of KV events have images without their offsets.",
        after="Extra keys have the offsets of images.",
        forms=(Rules(EVENT_RULES, {"layout": "0.17"}),),
        options=("kv-events-config",),
    ),
)
