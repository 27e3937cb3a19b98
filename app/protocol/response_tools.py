"""The tools of ``POST /v1/responses`` and the choice among them: how they are taken and repeated.

The answer repeats every field that a type has, null where it was not given, and unknown ones at the end. A
tool that fits no type is reported as if it had been meant as the first one, a function: that is the order in
which vLLM tries them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, cast

import msgspec
from msgspec import Struct

from app.http.errors import bad_request
from app.protocol.coercion import JsonObject, Misfit, convert
from app.protocol.options import FunctionDefinition
from app.protocol.tool_fields import CHOICES, FUNCTION, TOOLS

ToolParam = JsonObject


def convert_tools(value: object) -> list[ToolParam]:
    """Returns the tools in `value` as the answer repeats them. Raises `Misfit`."""
    if not isinstance(value, list):
        raise Misfit("a list of tools")
    return [_convert_tool(index, tool) for index, tool in enumerate(value)]


def _convert_tool(index: int, tool: object) -> ToolParam:
    try:
        return _converted(TOOLS, tool)
    except Misfit:
        pass
    try:
        convert(FUNCTION, tool)
    except Misfit as misfit:
        raise misfit.under("FunctionTool").under(index) from None
    raise AssertionError("a function that fits is one")


def convert_tool_choice(value: object) -> str | JsonObject:
    """Returns the choice in `value` as the answer repeats it. Raises `Misfit` for the choice as a whole."""
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return value
    try:
        return _converted(CHOICES, value)
    except Misfit:
        raise Misfit("none, auto, required, or an object that names a tool") from None


def _converted(kinds: Mapping[str, type[Struct]], value: object) -> JsonObject:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise Misfit("a type that is known")
    repeated = _repeated(convert(kinds[kind], value), value)
    assert isinstance(repeated, dict)
    return repeated


def _repeated(converted: object, given: object) -> object:
    """Returns a converted value as JSON, with the keys that only the `given` one has."""
    if isinstance(converted, list) and isinstance(given, list):
        return [_repeated(one, other) for one, other in zip(converted, given, strict=True)]
    if not isinstance(converted, Struct) or not isinstance(given, dict):
        return converted
    fields = msgspec.structs.fields(converted)
    told = {
        field.encode_name: _repeated(getattr(converted, field.name), given.get(field.encode_name))
        for field in fields
    }
    return told | {key: value for key, value in given.items() if key not in told}


CUSTOM_INPUT = "input"
"""The one argument of a custom tool, as the model is shown it."""
CUSTOM_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string", "description": "The text that the tool is given."}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}


def custom_input(arguments: str) -> str:
    """Returns the text that a custom tool is given with these arguments; all of them where they have none."""
    try:
        given = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments
    text = given.get(CUSTOM_INPUT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


class CalledTool(NamedTuple):
    """What the answer calls a function that the model called."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


def callable_functions(tools: Sequence[ToolParam]) -> Iterator[FunctionDefinition]:
    """Yields the functions that the model is shown: custom tools are functions of a text."""
    for tool in tools:
        kind, name = tool["type"], str(tool.get("name"))
        if kind == "function":
            yield msgspec.convert(tool, FunctionDefinition)
        elif kind == "custom":
            description = cast(str | None, tool["description"])
            yield FunctionDefinition(name=name, description=description, parameters=CUSTOM_PARAMETERS)
        for member in _members(tool):
            yield msgspec.convert(
                {**member, "name": flat_name(name, str(member["name"]))}, FunctionDefinition
            )


def called_tools(tools: Sequence[ToolParam]) -> Mapping[str, CalledTool]:
    """Returns what the answer calls the functions whose names the model knows differently, by those names."""
    called = {
        str(tool["name"]): CalledTool(str(tool["name"]), None, True)
        for tool in tools
        if tool["type"] == "custom"
    }
    for tool in tools:
        for member in _members(tool):
            namespace, name = str(tool["name"]), str(member["name"])
            called[flat_name(namespace, name)] = CalledTool(name, namespace)
    return called


def _members(tool: ToolParam) -> Iterator[JsonObject]:
    """Yields the functions of a namespace."""
    members = tool["tools"] if tool["type"] == "namespace" else ()
    assert isinstance(members, list | tuple)
    yield from (member for member in members if member["type"] == "function")


def check_tool_use(tools: object, choice: object) -> None:
    """Raises `ApiError` for a choice of a tool that is not there, and for tools that are never taken."""
    if isinstance(tools, int | float):
        raise bad_request("tools must be a list")
    named = isinstance(choice, dict) and choice.get("type") in ("function", "custom")
    if not tools:
        if named or choice == "required":
            raise bad_request("tool_choice asks for a call, and there are no tools", "tool_choice")
        return
    for tool in tools if isinstance(tools, list) else ():
        form = tool.get("format") if isinstance(tool, dict) and tool.get("type") == "custom" else None
        if isinstance(form, dict) and form.get("type") == "grammar":
            raise bad_request("Custom tools take free text here, no grammar.", "tools")
    if isinstance(choice, dict) and named:
        resolve_choice(choice, tools)


def resolve_choice(choice: JsonObject, tools: object) -> JsonObject:
    """Returns the choice of one tool with its full name. Raises `ApiError`.

    A function of a namespace is known by its name alone where that is unique.
    """
    name, full_names = choice.get("name"), set[str]()
    if isinstance(name, list | dict) and name:
        raise bad_request("tool_choice.name must be a string")
    within_namespaces: list[str] = []
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict) or tool.get("type") != "namespace":
            full_names.add(str(tool.get("name")) if isinstance(tool, dict) else "")
            continue
        namespace, members = tool.get("name"), tool.get("tools")
        if not isinstance(members, list) or not isinstance(namespace, str):
            return choice  # the schema refuses these tools
        names = [member.get("name") for member in members if isinstance(member, dict)]
        full_names.update(flat_name(namespace, str(member)) for member in names)
        within_namespaces += [flat_name(namespace, str(name)) for member in names if name == member]
    if name and name in full_names:
        return choice
    if not name or not within_namespaces:
        raise bad_request("tool_choice names a tool that is not among tools", "tool_choice")
    if len(within_namespaces) > 1:
        found = ", ".join(within_namespaces)
        raise bad_request(f"tool_choice names a function of several namespaces: {found}", "tool_choice")
    return {**choice, "name": within_namespaces[0]}


def flat_name(namespace: str, name: str) -> str:
    """Returns what the model calls a function of a namespace."""
    return f"{namespace}__{name}"
