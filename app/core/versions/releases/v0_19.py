"""Changes of vLLM 0.19 to chats and KV events."""

from typing import Any

from app.core.versions.change import Answer, Change, Rules
from app.core.versions.paths import CHATS

REQUESTS_RULES = "app.core.protocol.validation.RequestRules"
EVENT_RULES = "app.core.engine.kvcache.publishing.EventRules"


def narrow_deltas(answer: Any) -> None:
    """Removes the empty list of calls from texts, and the null text from calls.

    The last delta has a text, which may be empty.
    """
    for choice in answer.get("choices", ()):
        delta = choice.get("delta")
        if delta is None or "role" in delta:
            continue
        if delta.get("tool_calls") == []:
            del delta["tool_calls"]
        elif delta.get("tool_calls") and delta.get("content", "") is None:
            del delta["content"]
        if not delta and choice["finish_reason"] is not None:
            delta["content"] = ""


CHANGES = (
    Change(
        area="Chat and completions",
        before="With `--enable-force-include-usage`, the last chunk of a stream has usage.",
        after="Each chunk has usage.",
        forms=(Rules(REQUESTS_RULES, {"continues_forced_usage": False}),),
        options=("enable-force-include-usage",),
    ),
    Change(
        area="Chat and completions",
        before="In streams that the parser `hermes` reads, texts have no `tool_calls`, and calls "
        "no `content`. The last delta has empty `content`.",
        after="Texts have `tool_calls: []`, and calls `content: null`. The last delta is empty.",
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
