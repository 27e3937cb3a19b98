"""Tools and tool choice of ``POST /v1/responses``: conversion, and repetition in the answer.

The answer repeats all fields of functions, custom tools, namespaces, web searches, MCP servers and
code interpreters, with null for missing ones, then unknown fields; it repeats other tools as they
are given. A tool of no known type is reported as a wrong function, the first type that vLLM tries.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from types import GenericAlias
from typing import Any, Literal, NamedTuple, cast

import msgspec
from msgspec import NODEFAULT, Struct

from app.serving.http.errors import bad_request
from app.serving.protocol.coercion import ConversionError, JsonObject, convert
from app.serving.protocol.options import FunctionDefinition

LATER = "allowed_callers:callers is_async:flag defer_loading:flag description"
PLACE = "city country region timezone"
CONTAINER = (
    "file_ids:texts memory_limit?=1g|4g|16g|64g network_policy:NetworkDisabled|NetworkAllowlist"
)
CONNECTORS = (
    "connector_dropbox|connector_gmail|connector_googlecalendar|connector_googledrive|"
    "connector_microsoftteams|connector_outlookcalendar|connector_outlookemail|connector_sharepoint"
)
STRUCTS: Mapping[str, str] = {
    "FunctionTool": f"name! parameters:object strict:flag type=function {LATER} output_schema:object",
    "CustomToolFormat": "type=text",
    "CustomTool": f"name! type=custom {LATER} format:CustomToolFormat",
    "NamespaceFunction": f"name! type=function {LATER} output_schema:object parameters:any strict:flag",
    "NamespaceTool": "description! name! tools!:[NamespaceFunction|CustomTool] type=namespace",
    "WebSearchFilters": "allowed_domains:texts",
    "UserLocation": f"{PLACE} type?=approximate",
    "WebSearchTool": "type=web_search|web_search_2025_08_26 external_web_access:flag "
    "filters:WebSearchFilters search_context_size:size user_location:UserLocation",
    "McpToolFilter": "read_only:flag tool_names:texts",
    "McpApproval": "always:McpToolFilter never:McpToolFilter",
    "Mcp": "server_label! type=mcp allowed_callers:callers allowed_tools:texts|McpToolFilter authorization "
    f"connector_id?={CONNECTORS} defer_loading:flag headers:headers "
    "require_approval:McpApproval|approval server_description server_url tunnel_id",
    "DomainSecret": "domain! name! value!",
    "NetworkDisabled": "type=disabled",
    "NetworkAllowlist": "allowed_domains!:texts type=allowlist domain_secrets:[DomainSecret]",
    "AutoContainer": f"type=auto {CONTAINER}",
    "CodeInterpreter": "container!:text|AutoContainer type=code_interpreter allowed_callers:callers",
    "AllowedTools": "mode=auto|required tools!:[object] type=allowed_tools",
    "ChosenFunction": "name! type=function",
    "ChosenMcp": "server_label! type=mcp name",
    "ChosenCustom": "name! type=custom",
    "ChosenType": "type=file_search|web_search_preview|computer|computer_use_preview|computer_use|shell|"
    "web_search_preview_2025_03_11|image_generation|code_interpreter|apply_patch|programmatic_tool_calling",
}
"""Fields of each struct in the answer's order: texts, or `name:hint`; `name=a|b` is one of these words.

Fields are nullable, but for words and for names with `!`; `?=` makes words nullable. A hint is a name of
`HINTS` or an earlier struct, several by `|`, a list in brackets.
"""
HINTS: Mapping[str, Any] = {
    "text": str,
    "texts": list[str],
    "flag": bool,
    "any": object,
    "object": JsonObject,
    "headers": dict[str, str],
    "callers": list[Literal["direct", "programmatic"]],
    "size": Literal["low", "medium", "high"],
    "approval": Literal["always", "never"],
}


def _build_structs() -> Mapping[str, type[Struct]]:
    built: dict[str, Any] = {}

    def hint_of(text: str) -> Any:
        if text.startswith("["):
            return GenericAlias(list, (hint_of(text[1:-1]),))
        return reduce(or_, (HINTS.get(name) or built[name] for name in text.split("|")))

    for title, fields in STRUCTS.items():
        rows: list[tuple[str, Any, Any]] = []
        for name, marks, hint in re.findall(r"(\w+)([!?]?[:=]?)(\S*)", fields):
            kind = (
                Literal[tuple(hint.split("|"))] if marks.endswith("=") else hint_of(hint or "text")
            )
            if marks.startswith("!") or marks == "=":
                rows.append((name, kind, NODEFAULT))
            else:
                rows.append((name, kind if kind is object else kind | None, None))
        built[title] = msgspec.defstruct(title, rows, kw_only=True, rename={"is_async": "async"})
    return built


def _by_type(titles: Sequence[str]) -> Mapping[str, type[Struct]]:
    """Maps each word that a struct allows as its type to the struct."""
    return {
        word: BUILT[title]
        for title in titles
        for words in re.findall(r"\btype=(\S+)", STRUCTS[title])
        for word in words.split("|")
    }


BUILT = _build_structs()
FUNCTION = BUILT["FunctionTool"]
TOOLS = _by_type(
    ("FunctionTool", "WebSearchTool", "Mcp", "CodeInterpreter", "CustomTool", "NamespaceTool")
)
"""Structs by type. Only functions, also in a namespace, and custom tools are ever called."""
CHOICES = _by_type(("AllowedTools", "ChosenFunction", "ChosenMcp", "ChosenCustom", "ChosenType"))
REPEATED_AS_GIVEN = frozenset(
    (
        *(
            "file_search",
            "computer",
            "computer_use_preview",
            "web_search_preview",
            "image_generation",
        ),
        *("web_search_preview_2025_03_11", "local_shell", "shell", "tool_search", "apply_patch"),
        "programmatic_tool_calling",
    )
)


ToolParam = JsonObject


def convert_tools(value: object) -> list[ToolParam]:
    """Returns the tools in the form that the answer repeats. Raises `ConversionError`."""
    if not isinstance(value, list):
        raise ConversionError("a list of tools")
    return [_convert_tool(index, tool) for index, tool in enumerate(value)]


def _convert_tool(index: int, tool: object) -> ToolParam:
    kind = tool.get("type") if isinstance(tool, dict) else None
    if isinstance(tool, dict) and isinstance(kind, str) and kind in REPEATED_AS_GIVEN:
        return tool
    try:
        return _converted(TOOLS, tool)
    except ConversionError:
        pass
    try:
        convert(FUNCTION, tool)
    except ConversionError as error:
        raise error.prefixed("FunctionTool").prefixed(index) from None
    raise AssertionError("a function that fits is one")


def convert_tool_choice(value: object) -> str | JsonObject:
    """Returns the choice in the form that the answer repeats. Raises `ConversionError` without a path."""
    if isinstance(value, str) and value in ("none", "auto", "required"):
        return value
    try:
        return _converted(CHOICES, value)
    except ConversionError:
        raise ConversionError("none, auto, required, or an object that names a tool") from None


def _converted(kinds: Mapping[str, type[Struct]], value: object) -> JsonObject:
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise ConversionError("a type that is known")
    repeated = _repeated(convert(kinds[kind], value), value)
    assert isinstance(repeated, dict)
    return repeated


def _repeated(converted: object, given: object) -> object:
    """Returns a converted value as JSON, followed by unknown keys of the `given` one."""
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
CUSTOM_PARAMETERS: JsonObject = {
    "type": "object",
    "properties": {
        CUSTOM_INPUT: {"type": "string", "description": "The text that the tool is given."}
    },
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}


def custom_input(arguments: str) -> str:
    """Returns the text argument of a custom tool's call; without one, `arguments` unchanged."""
    try:
        given = msgspec.json.decode(arguments)
    except msgspec.DecodeError:
        return arguments
    text = given.get(CUSTOM_INPUT) if isinstance(given, dict) else None
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
    for tool in tools:
        kind, name = tool["type"], str(tool.get("name"))
        if kind == "function":
            yield msgspec.convert(tool, FunctionDefinition), CalledTool(name)
        elif kind == "custom":
            description = cast(str | None, tool["description"])
            function = FunctionDefinition(
                name=name, description=description, parameters=CUSTOM_PARAMETERS
            )
            yield function, CalledTool(name, is_custom=True)
        for member in cast(list[JsonObject], tool["tools"]) if kind == "namespace" else ():
            if member["type"] == "function":
                own = str(member["name"])
                function = msgspec.convert(
                    {**member, "name": flat_name(name, own)}, FunctionDefinition
                )
                yield function, CalledTool(own, name)


def called_tools(tools: Sequence[ToolParam]) -> Mapping[str, CalledTool]:
    return {function.name: called for function, called in callable_functions(tools)}


def check_tool_use(tools: object, choice: object) -> None:
    """Raises `ApiError` for a choice without a matching tool, and for unsupported tools."""
    if isinstance(tools, int | float):
        raise bad_request("tools must be a list")
    named = isinstance(choice, dict) and choice.get("type") in ("function", "custom")
    if not tools:
        if named or choice == "required":
            raise bad_request("tool_choice asks for a call, and there are no tools", "tool_choice")
        return
    for tool in tools if isinstance(tools, list) else ():
        form = (
            tool.get("format") if isinstance(tool, dict) and tool.get("type") == "custom" else None
        )
        if isinstance(form, dict) and form.get("type") == "grammar":
            raise bad_request("Custom tools take free text here, no grammar.", "tools")
    if isinstance(choice, dict) and named:
        resolve_choice(choice, tools)


def resolve_choice(choice: JsonObject, tools: object) -> JsonObject:
    """Returns the choice of one tool with its full name. Raises `ApiError`.

    A namespace function's short name suffices if unique.
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
        raise bad_request(
            f"tool_choice names a function of several namespaces: {found}", "tool_choice"
        )
    return {**choice, "name": within_namespaces[0]}


def flat_name(namespace: str, name: str) -> str:
    return f"{namespace}__{name}"
