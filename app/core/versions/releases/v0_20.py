"""Changes of vLLM 0.20 to chats."""

from typing import Any

from app.core.versions.change import Change, Reading, Rules
from app.core.versions.paths import CHATS, INVOCATIONS

PARSER_RULES = "app.core.versions.parsed_streams.ParserRules"
EVENT_RULES = "app.core.engine.kvcache.publishing.EventRules"


def accept_no_tools(request: Any) -> None:
    """Removes an empty list of tools, with the choice among them."""
    if request.get("tools") == []:
        del request["tools"]
        request.pop("tool_choice", None)


CHANGES = (
    Change(
        area="Chat and completions",
        before="Tool parsers read the streams of chats that may call tools.",
        after="They read the streams of all chats, up to vLLM 0.22.",
        forms=(Rules(PARSER_RULES, {"parses_all": False}),),
        options=("tool-call-parser",),
    ),
    Change(
        area="Chat and completions",
        before="`tools` may be empty.",
        after="An empty list of `tools` is an error.",
        forms=(Reading(paths=(*CHATS, INVOCATIONS), read=accept_no_tools),),
    ),
    Change(
        area="KV events",
        before="KV events have no `group_idx`.",
        after="KV events have `group_idx`.",
        forms=(Rules(EVENT_RULES, {"layout": "0.19"}),),
        options=("kv-events-config",),
    ),
)
