"""Tools of ``POST /v1/responses``, and which of them a reply calls.

They stay dicts, because the answer repeats them: functions with every field that OpenAI's SDK knows, in its
order, as vLLM repeats them; all others as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from app.http.errors import bad_request
from app.protocol.coercion import Misfit, convert

ToolParam = dict[str, Any]

OTHER_TOOLS = frozenset(
    (
        *("apply_patch", "code_interpreter", "computer", "computer_use_preview", "custom", "file_search"),
        *("image_generation", "local_shell", "mcp", "namespace", "programmatic_tool_calling", "shell"),
        *("tool_search", "web_search", "web_search_2025_08_26", "web_search_preview"),
        "web_search_preview_2025_03_11",
    )
)
"""Types of tools that are taken and never called, as by a vLLM without tool servers."""


class FunctionTool(Struct, kw_only=True):
    """A function that may be called; `parameters` is the JSON schema of its arguments."""

    name: str
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    type: str = "function"
    allowed_callers: list[str] | None = None
    is_async: bool | None = msgspec.field(default=None, name="async")
    defer_loading: bool | None = None
    description: str | None = None
    output_schema: dict[str, Any] | None = None


class FunctionChoice(Struct, kw_only=True):
    """The one function that must be called."""

    name: str
    type: str = "function"


class AllowedChoice(Struct, kw_only=True):
    """The tools that may be called (mode `auto`), or of which one must be (`required`)."""

    mode: str
    tools: list[dict[str, Any]]
    type: str = "allowed_tools"

    def __post_init__(self) -> None:
        if self.mode not in ("auto", "required"):
            raise Misfit("auto or required", "mode")


def convert_tools(value: Any) -> list[ToolParam]:
    """The tools in `value`; functions may be nested as in a chat. Raises `Misfit`."""
    if not isinstance(value, list):
        raise Misfit("a list of tools")
    return [_convert_tool(index, tool) for index, tool in enumerate(value)]


def _convert_tool(index: int, tool: Any) -> ToolParam:
    if not isinstance(tool, dict):
        raise Misfit("a tool object", index)
    kind = tool.get("type", "function")
    if kind == "function":
        try:
            found: ToolParam = msgspec.to_builtins(convert(FunctionTool, _flat(tool)))
        except Misfit as misfit:
            raise misfit.under("function").under(index) from None
        return found
    if not isinstance(kind, str) or kind not in OTHER_TOOLS:
        raise Misfit("a tool of type function, or of another type that is known", index)
    return tool


def convert_tool_choice(value: Any) -> str | dict[str, Any]:
    """The choice in `value`; a function may be nested as in a chat. Raises `Misfit`."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "function":
        chosen: dict[str, Any] = msgspec.to_builtins(convert(FunctionChoice, _flat(value)))
        return chosen
    if kind == "allowed_tools":
        nested = value.get("allowed_tools")
        allowed = nested if isinstance(nested, dict) else value
        chosen = msgspec.to_builtins(convert(AllowedChoice, {**allowed, "type": kind}))
        return chosen
    if isinstance(kind, str) and kind in OTHER_TOOLS:
        assert isinstance(value, dict)
        return value
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return value
    raise Misfit("none, auto, required, or an object that names a tool")


def check_tool_use(request: Any) -> None:
    """What must be called is among the tools. Raises `ApiError`."""
    tools, choice = request.tools, request.tool_choice
    named = isinstance(choice, dict) and choice.get("type") == "function"
    if not tools:
        if named or choice == "required":
            raise bad_request("tool_choice asks for a call, and there are no tools", "tool_choice")
    elif named and isinstance(tools, list) and name_of(choice) not in filter(None, map(name_of, tools)):
        raise bad_request("tool_choice names a function that is not among tools", "tool_choice")


def name_of(value: Any) -> Any:
    """The name of a function, or of the choice of one; None when there is none."""
    name = _flat(value).get("name") if isinstance(value, dict) else None
    return name if isinstance(name, str) else None


def _flat(value: Mapping[str, Any]) -> dict[str, Any]:
    """A function, or the choice of one, without the nesting that chats have."""
    nested = value.get("function")
    return {**(nested if isinstance(nested, dict) else value), "type": "function"}
