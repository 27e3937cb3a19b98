"""Tools and tool choice of ``POST /v1/responses``: which functions a model may call."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, TypeGuard, cast

import msgspec

from app.core.base.clock.pause import Slices, paced
from app.core.protocol.coercion import JsonObject
from app.core.protocol.options import FunctionDefinition
from app.core.protocol.rules import get_field
from app.core.server.http.errors import bad_request
from config.untrusted import UntrustedDataError, decode_untrusted

ToolParam = JsonObject
CUSTOM_INPUT = "input"
CUSTOM_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {
        CUSTOM_INPUT: {"type": "string", "description": "The text that the tool is given."}
    },
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}
"""Schema of the function that stands for a custom tool in the model's prompt."""


def convert_tools(value: object) -> list[ToolParam]:
    """Returns the tools in the form that the answer repeats.

    Raises:
        ConversionError: A tool is invalid.
    """
    if value == []:
        return []
    from app.extensions.responses import tool_conversion  # few requests have tools

    return tool_conversion.convert_tools(value)


def convert_tool_choice(value: object) -> str | JsonObject:
    """Returns the choice in the form that the answer repeats.

    Raises:
        ConversionError: The choice is invalid; the error has no path.
    """
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return value
    from app.extensions.responses import tool_conversion  # few requests name a tool

    return tool_conversion.convert_tool_choice(value)


def custom_input(arguments: str) -> str:
    """Returns the text argument of a custom tool's call, or `arguments` if it has none."""
    try:
        fields = decode_untrusted(arguments)
    except UntrustedDataError:
        return arguments
    text = get_field(fields, CUSTOM_INPUT)
    return text if isinstance(text, str) else arguments


class CalledTool(NamedTuple):
    """The answer's name of a called function, which differs from the model's."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


def callable_functions(
    tools: Sequence[ToolParam],
) -> Iterator[tuple[FunctionDefinition, CalledTool]]:
    """Yields the functions in the model's prompt, with their names in the answer.

    A custom tool becomes a function with a text argument.
    """
    for tool in paced(tools):
        kind = tool["type"]
        name = str(tool.get("name"))
        if kind == "function":
            yield msgspec.convert(tool, FunctionDefinition), CalledTool(name)
        elif kind == "custom":
            function = FunctionDefinition(
                name=name,
                description=cast(str | None, tool["description"]),
                parameters=CUSTOM_PARAMETERS,
            )
            yield function, CalledTool(name, is_custom=True)
        elif kind == "namespace":
            yield from _namespace_functions(name, cast(list[JsonObject], tool["tools"]))


def _namespace_functions(
    namespace: str, members: Sequence[JsonObject]
) -> Iterator[tuple[FunctionDefinition, CalledTool]]:
    slices = Slices()
    for member in members:
        slices.spend()
        if member["type"] == "function":
            name = str(member["name"])
            renamed = {**member, "name": flat_name(namespace, name)}
            yield msgspec.convert(renamed, FunctionDefinition), CalledTool(name, namespace)


def called_tools(tools: Sequence[ToolParam]) -> Mapping[str, CalledTool]:
    """Maps the model's names of functions to the answer's."""
    if not tools:
        return {}
    return {function.name: called for function, called in callable_functions(tools)}


def is_named_choice(choice: object) -> TypeGuard[JsonObject]:
    """Returns true for the choice of one function or custom tool."""
    return isinstance(choice, dict) and choice.get("type") in ("function", "custom")


def check_tool_use(tools: object, choice: object) -> None:
    """Raises `ApiError` for a choice without a matching tool, and for unsupported tools."""
    if isinstance(tools, int | float):
        raise bad_request("tools must be a list")
    if not tools:
        if is_named_choice(choice) or choice == "required":
            raise bad_request(
                "Tool choice 'required' must be specified with 'tools' parameter.", "tool_choice"
            )
        return
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict) or tool.get("type") != "custom":
            continue
        input_format = tool.get("format")
        if isinstance(input_format, dict) and input_format.get("type") == "grammar":
            raise bad_request("Custom tools support only free text, not a grammar.", "tools")
    if is_named_choice(choice):
        resolve_choice(choice, tools)


def resolve_choice(choice: JsonObject, tools: object) -> JsonObject:
    """Returns the choice of one tool with its full name; a unique short name suffices.

    Raises:
        ApiError: There is no such tool, or several namespaces have it.
    """
    name = choice.get("name")
    if isinstance(name, list | dict) and name:
        raise bad_request("tool_choice.name must be a string")
    full_names: set[str] = set()
    matches_in_namespaces: list[str] = []
    for tool in tools if isinstance(tools, list) else ():
        if not isinstance(tool, dict) or tool.get("type") != "namespace":
            full_names.add(str(tool.get("name")) if isinstance(tool, dict) else "")
            continue
        namespace = tool.get("name")
        members = tool.get("tools")
        if not isinstance(members, list) or not isinstance(namespace, str):
            return choice  # the schema rejects these tools
        short_names = [member.get("name") for member in members if isinstance(member, dict)]
        full_names.update(flat_name(namespace, str(short_name)) for short_name in short_names)
        matches_in_namespaces += [flat_name(namespace, str(name))] * short_names.count(name)
    if name and name in full_names:
        return choice
    if not name or not matches_in_namespaces:
        raise bad_request("Tool choice 'function' not found in 'tools' parameter.", "tool_choice")
    if len(matches_in_namespaces) > 1:
        listed = ", ".join(matches_in_namespaces)
        raise bad_request(
            f"tool_choice names a function that is in several namespaces: {listed}", "tool_choice"
        )
    return {**choice, "name": matches_in_namespaces[0]}


def flat_name(namespace: str, name: str) -> str:
    """Returns the model's name of a function in a namespace."""
    return f"{namespace}__{name}"
