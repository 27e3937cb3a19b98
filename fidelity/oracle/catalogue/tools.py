"""Tools and structured outputs of chats and completions.

A choice of one text makes the answer known: the real model writes exactly this text, and the tool
parser of the configuration reads it.
"""

import json

from fidelity.oracle.cases import REMOVED, Area
from fidelity.oracle.catalogue.requests import (
    CHAT,
    CHAT_FIELDS,
    CLOCK_TOOL,
    COLOR_SCHEMA,
    COMPLETION_FIELDS,
    COMPLETIONS,
    SCRIPTED_VALUES,
    STRICT_TOOL,
    TOOLS,
    WEATHER_TOOL,
    scripted,
)

FIELDS = {**CHAT_FIELDS, "max_tokens": 600, "ignore_eos": False}
"""A random model writes many spaces, and more than one call."""
AREA = Area("tools", path=CHAT, fields=FIELDS)
STRUCTURED = Area("structured outputs", path=CHAT, fields={**FIELDS, "max_tokens": 60})
COMPLETED = Area(
    "structured completions",
    path=COMPLETIONS,
    fields={**COMPLETION_FIELDS, "max_tokens": 60, "ignore_eos": False},
)
NAMED_CHOICE = {"type": "function", "function": {"name": "get_zone"}}


def _function(**changes: object) -> dict[str, object]:
    function = {"name": "f", "description": "d", "parameters": {"type": "object"}, **changes}
    fields = {name: value for name, value in function.items() if value is not REMOVED}
    return {"type": "function", "function": fields}


AREA.variants(
    "A forced call has the name and valid arguments.",
    {
        "required": {"tools": [STRICT_TOOL], "tool_choice": "required"},
        "named": {"tools": [STRICT_TOOL, CLOCK_TOOL], "tool_choice": NAMED_CHOICE},
        "required in a stream": {"tools": [STRICT_TOOL], "tool_choice": "required", "stream": True},
        "named in a stream": {
            "tools": [STRICT_TOOL, CLOCK_TOOL],
            "tool_choice": NAMED_CHOICE,
            "stream": True,
        },
        "named without tools": {"tool_choice": NAMED_CHOICE},
        "named but unknown": {
            "tools": [WEATHER_TOOL],
            "tool_choice": {"type": "function", "function": {"name": "nope"}},
        },
        "named without a name": {"tools": TOOLS, "tool_choice": {"type": "function"}},
        "named of another type": {"tools": TOOLS, "tool_choice": {"type": "custom"}},
        "required without tools": {"tool_choice": "required"},
        "auto without tools": {"tool_choice": "auto"},
        "none without tools": {"tool_choice": "none"},
        "unknown choice": {"tools": TOOLS, "tool_choice": "always"},
        "number as choice": {"tools": TOOLS, "tool_choice": 5},
        "none": {"tools": TOOLS, "tool_choice": "none"},
        "empty tools": {"tools": []},
        "empty tools, auto": {"tools": [], "tool_choice": "auto"},
        "tools as an object": {"tools": {}},
        "null tools": {"tools": None},
        "single calls": {
            "tools": [STRICT_TOOL],
            "tool_choice": "required",
            "parallel_tool_calls": False,
        },
        "required with beams": {
            "tools": [STRICT_TOOL],
            "tool_choice": "required",
            "use_beam_search": True,
        },
        "required with two choices": {"tools": [STRICT_TOOL], "tool_choice": "required", "n": 2},
    },
    ignored=("arguments",),
)
NO_CALL = {"tool_choice": "none"}
"""With tools, the default is auto, and the model decides."""
AREA.variants(
    "The schema of a tool is checked.",
    {
        "tool without a type": {**NO_CALL, "tools": [{"function": {"name": "f"}}]},
        "tool of another type": {**NO_CALL, "tools": [{"type": "browser"}]},
        "tool without a function": {**NO_CALL, "tools": [{"type": "function"}]},
        "function without a name": {**NO_CALL, "tools": [_function(name=REMOVED)]},
        "function with an empty name": {**NO_CALL, "tools": [_function(name="")]},
        "function without parameters": {**NO_CALL, "tools": [_function(parameters=REMOVED)]},
        "null parameters": {**NO_CALL, "tools": [_function(parameters=None)]},
        "parameters as a list": {**NO_CALL, "tools": [_function(parameters=[])]},
        "unknown key of a function": {**NO_CALL, "tools": [_function(mood="good")]},
        "strict function": {**NO_CALL, "tools": [_function(strict=True)]},
        "strict of a wrong type": {**NO_CALL, "tools": [_function(strict="x")]},
        "required, invalid parameters": {
            "tools": [_function(parameters={"type": "what"}, strict=True)],
            "tool_choice": "required",
        },
        "the same tool twice": {**NO_CALL, "tools": [CLOCK_TOOL, CLOCK_TOOL]},
        "deferred loading": {**NO_CALL, "tools": [_function(defer_loading=True)]},
    },
    ignored=("content",),
)

ARGUMENTS = '{"city": "Oslo"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'
TIME_CALL = '<tool_call>{"name": "get_time", "arguments": {"zone": "UTC"}}</tool_call>'
HERMES_TEXTS = {
    "one call": CALL,
    "two calls": f"{CALL}\n{TIME_CALL}",
    "text before a call": f"Let me see. {CALL}",
    "text after a call": f"{CALL} Done.",
    "unknown function": '<tool_call>{"name": "fly", "arguments": {}}</tool_call>',
    "broken JSON": '<tool_call>{"name": "get_weather", "arguments": {"city": </tool_call>',
    "call left open": f'<tool_call>{{"name": "get_weather", "arguments": {ARGUMENTS}}}',
    "parameters for arguments": f'<tool_call>{{"name": "get_weather", "parameters": {ARGUMENTS}}}'
    "</tool_call>",
    "arguments as text": '<tool_call>{"name": "get_weather", "arguments": "Oslo"}</tool_call>',
    "no arguments": '<tool_call>{"name": "get_weather"}</tool_call>',
    "plain text": "It is red.",
    "plain JSON": f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}',
    "call of another format": f'[get_weather(city="Oslo")] {ARGUMENTS}',
    "empty call": "<tool_call></tool_call>",
    "nested arguments": '<tool_call>{"name": "get_weather", '
    '"arguments": {"city": {"a": [1, null]}}}</tool_call>',
    "letters outside of ASCII": '<tool_call>{"name": "get_weather", '
    '"arguments": {"city": "Zürich"}}</tool_call>',
}


def _add_texts(area: Area, texts: dict[str, str]) -> None:
    """Adds each text as an answer, as a whole and as a stream."""
    for name, text in texts.items():
        for stream in (False, True):
            area.case(
                f"{name}, {'stream' if stream else 'whole'}",
                "The parser finds the calls, their arguments and the text around them.",
                {**scripted(text), "stream": stream},
                values=() if stream else SCRIPTED_VALUES,
            )


HERMES = Area("calls of hermes", path=CHAT, fields=FIELDS)
_add_texts(HERMES, HERMES_TEXTS)
HERMES.case(
    "single calls",
    "Further calls are dropped.",
    {**scripted(f"{CALL}\n{TIME_CALL}"), "parallel_tool_calls": False},
    values=SCRIPTED_VALUES,
)
HERMES.case(
    "with a format",
    "A format and tools exclude each other or not.",
    {**scripted(CALL), "response_format": {"type": "json_object"}},
)
LLAMA = Area("calls of llama3_json", path=CHAT, fields=FIELDS, configuration="llama3_json")
_add_texts(
    LLAMA,
    {
        "one call": f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}',
        "arguments": f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}',
        "two calls": f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}; '
        '{"name": "get_time", "parameters": {"zone": "UTC"}}',
        "text before a call": f'Well: {{"name": "get_weather", "parameters": {ARGUMENTS}}}',
        "unknown function": '{"name": "fly", "parameters": {}}',
        "call left open": '{"name": "get_weather", "parameters": {"city": "Os',
        "other JSON": '{"color": "red"}',
        "plain text": "It is red.",
    },
)
PYTHONIC = Area("calls of pythonic", path=CHAT, fields=FIELDS, configuration="pythonic")
_add_texts(
    PYTHONIC,
    {
        "one call": '[get_weather(city="Oslo")]',
        "two calls": '[get_weather(city="Oslo"), get_time(zone="UTC")]',
        "text before a call": 'Well: [get_weather(city="Oslo")]',
        "unknown function": "[fly()]",
        "call left open": '[get_weather(city="Os',
        "values": '[get_weather(city={"a": [1, None, True, -2.5]})]',
        "names as values": "[get_weather(city=Oslo)]",
        "plain text": "It is red.",
        "a list": "[1, 2]",
    },
)

SCHEMA_FORMAT = {
    "type": "json_schema",
    "json_schema": {"name": "color", "schema": COLOR_SCHEMA, "strict": True},
}
STRUCTURED.variants(
    "A format constrains the answer.",
    {
        "text": {"response_format": {"type": "text"}},
        "object": {"response_format": {"type": "json_object"}},
        "schema": {"response_format": SCHEMA_FORMAT},
        "schema in a stream": {"response_format": SCHEMA_FORMAT, "stream": True},
        "unknown type": {"response_format": {"type": "yaml"}},
        "no type": {"response_format": {}},
        "a string": {"response_format": "json"},
        "schema absent": {"response_format": {"type": "json_schema"}},
        "schema without a name": {
            "response_format": {"type": "json_schema", "json_schema": {"schema": COLOR_SCHEMA}}
        },
        "schema without a schema": {
            "response_format": {"type": "json_schema", "json_schema": {"name": "a"}}
        },
        "schema of an unknown type": {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"type": "thing"}},
            }
        },
        "structural tag": {
            "response_format": {
                "type": "structural_tag",
                "structures": [{"begin": "<a>", "schema": COLOR_SCHEMA, "end": "</a>"}],
                "triggers": ["<a>"],
            }
        },
    },
)
STRUCTURED.variants(
    "A choice of one text determines the answer.",
    {
        "choice": {"structured_outputs": {"choice": ["deep blue"]}},
        "choice with an escape": {"structured_outputs": {"choice": ['say "red"\n']}},
        "regex": {"structured_outputs": {"regex": "re{2}d"}},
        "grammar": {"structured_outputs": {"grammar": 'root ::= "red"'}},
        "constant": {"structured_outputs": {"json": {"const": "red"}}},
    },
    values=("content", "finish_reason"),
)
STRUCTURED.each(
    "structured_outputs",
    "Each kind of constraint is checked, and one kind is allowed.",
    [
        {},
        None,
        "x",
        {"choice": []},
        {"choice": "red"},
        {"choice": [1]},
        {"choice": [""]},
        {"json": "{"},
        {"json": json.dumps(COLOR_SCHEMA)},
        {"json": []},
        {"json_object": True},
        {"json_object": False},
        {"regex": "("},
        {"regex": ""},
        {"regex": "(?=a)b"},
        {"regex": r"(a)\1"},
        {"regex": r"\d{2}-[a-f]+"},
        {"regex": 5},
        {"grammar": ""},
        {"grammar": "root ::= ("},
        {"grammar": 'start: "red" | "blue"'},
        {"choice": ["a"], "regex": "a"},
        {"structural_tag": "{}"},
        {"whitespace_pattern": " "},
        {"unknown": 1},
        {"choice": ["a"], "disable_any_whitespace": True},
    ],
)
KEYWORDS: tuple[object, ...] = (
    {"type": "string", "pattern": "^a+$"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "duration"},
    {"type": "string", "minLength": 2, "maxLength": 3},
    {"type": "integer", "multipleOf": 5},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": 0},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
    {"type": "array", "uniqueItems": True},
    {"type": "array", "contains": {"type": "string"}},
    {"type": "array", "prefixItems": [{"type": "integer"}]},
    {"type": "object", "patternProperties": {"^a": {"type": "integer"}}},
    {"type": "object", "propertyNames": {"maxLength": 3}},
    {"type": "object", "minProperties": 1, "maxProperties": 2},
    {"type": "object", "dependentRequired": {"a": ["b"]}},
    {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    {"oneOf": [{"type": "integer"}, {"type": "null"}]},
    {"allOf": [{"type": "integer"}]},
    {"allOf": [{"type": "integer"}, {"minimum": 3}]},
    {"not": {"type": "integer"}},
    {"if": {"type": "integer"}, "then": {"minimum": 3}},
    {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}},
    {"$ref": "#/$defs/b", "$defs": {}},
    {"$ref": "https://example.com/schema"},
    {"type": ["integer", "null"]},
    {"type": []},
    {"enum": []},
    {"enum": [1, "a", None]},
    {"const": {"a": 1}},
    {"type": "integer", "minimum": 3, "maximum": 1},
    True,
    False,
)
for keyword in KEYWORDS:
    STRUCTURED.case(
        f"keyword {json.dumps(keyword)[:70]}",
        "What the grammar of a schema cannot express is refused.",
        {"structured_outputs": {"json": keyword}, "max_tokens": 30},
    )
COMPLETED.variants(
    "Completions take the same constraints.",
    {
        "choice": {"structured_outputs": {"choice": ["deep blue"]}},
        "choice of two prompts": {
            "structured_outputs": {"choice": ["blue"]},
            "prompt": ["a", "b"],
        },
        "choice with echo": {"structured_outputs": {"choice": ["blue"]}, "echo": True},
        "choice with a stop": {"structured_outputs": {"choice": ["deep blue"]}, "stop": "blue"},
        "choice cut": {"structured_outputs": {"choice": ["deep blue sea"]}, "max_tokens": 1},
    },
    values=("finish_reason",),
)
COMPLETED.case(
    "schema",
    "The format of chats is accepted.",
    {"response_format": SCHEMA_FORMAT},
)
AREAS = (AREA, HERMES, LLAMA, PYTHONIC, STRUCTURED, COMPLETED)
