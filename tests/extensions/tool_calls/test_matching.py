"""Which tools a message asks for, and with which arguments."""

from typing import Any

import pytest

from app.core.engine.request import ToolCalls, ToolFunction
from app.extensions.tool_calls.arguments import MAX_FIELDS
from app.extensions.tool_calls.matching import ToolMatcher
from app.extensions.tool_calls.named_tools import named_tools


def tool(name: str, description: str = "", required: Any = (), **properties: Any) -> ToolFunction:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return ToolFunction(name, schema, description)


TEXT = {"type": "string"}
INTEGER = {"type": "integer"}
WEATHER = tool(
    "get_current_weather",
    "Get the current weather in a given location",
    ("city",),
    city=TEXT,
    unit={"type": "string", "enum": ["celsius", "fahrenheit"]},
    days=INTEGER,
)
ADD = tool("add_numbers", "Adds two integers.", ("a", "b"), a=INTEGER, b=INTEGER)
MAGIC = tool("magic_function", "Apply a magic function to an input.", ("input",), input=INTEGER)
PING = tool("ping")
SEARCH = tool("lookup", "Search the archive of articles", ("query",), query=TEXT)
TOOLS = (WEATHER, ADD, MAGIC, PING, SEARCH)


def requested(question: str, **options: Any) -> list[tuple[str, dict[str, object]]]:
    calls = ToolCalls(**{"tools": TOOLS, "max_calls": len(TOOLS), **options}, question=question)
    return [(call.tool.name, dict(call.arguments)) for call in ToolMatcher().requested_calls(calls)]


@pytest.mark.parametrize(
    ("question", "name", "arguments"),
    [
        ("What is the weather in Rome?", "get_current_weather", {"city": "Rome"}),
        (
            "Weather in 'new york' for 3 days in Fahrenheit, please",
            "get_current_weather",
            {"city": "new york", "unit": "fahrenheit", "days": 3},
        ),
        ("Which number do you get if you add 17 and -4?", "add_numbers", {"a": 17, "b": -4}),
        ("add_numbers(b=2, a=40)", "add_numbers", {"a": 40, "b": 2}),
        ("What is the value of magic_function(3)? Use the tool.", "magic_function", {"input": 3}),
        ("Use the magic function on 2.5 and 7", "magic_function", {"input": 7}),
        (
            "searching our archives for whales",
            "lookup",
            {"query": "searching our archives for whales"},
        ),
        ("ping", "ping", {}),
    ],
)
def test_tool_is_selected_by_the_words_of_the_message(
    question: str, name: str, arguments: dict[str, object]
) -> None:
    assert requested(question) == [(name, arguments)]


@pytest.mark.parametrize(
    "question", ["hi", "", "Tell me a joke.", "Use a tool to get the current value", "12 and 13"]
)
def test_message_that_matches_no_tool_causes_no_tool_call(question: str) -> None:
    assert requested(question) == []


def test_several_named_tools_are_called_in_the_order_of_the_message() -> None:
    question = "First ping, then magic_function(4)"
    assert requested(question) == [("ping", {}), ("magic_function", {"input": 4})]
    assert requested(question, first_only=True) == [("ping", {})]
    question = "Call get_current_weather for Berlin and add_numbers for 1 and 2."
    assert requested(question) == [
        ("get_current_weather", {"city": "Berlin"}),
        ("add_numbers", {"a": 1, "b": 2}),
    ]


def test_tool_of_a_named_tool_choice_is_called_for_any_message() -> None:
    assert requested("Twice 21", tools=(MAGIC,), named=True) == [("magic_function", {"input": 21})]


def test_boolean_argument_is_true_if_the_message_contains_its_name() -> None:
    switch = tool("switch_light", "", (), bright=dict(type="boolean"), red=dict(type="boolean"))
    assert requested("Switch on a bright light", tools=(switch,)) == [
        ("switch_light", {"bright": True})
    ]


def test_arrays_and_patterned_strings_are_not_filled_from_the_message() -> None:
    book = tool(
        "book_room",
        "",
        ("code", "guests"),
        code={"type": "string", "pattern": "^[A-Z]{3}$"},
        guests={"type": "array", "items": TEXT},
    )
    assert requested("Book the room for Ada and Grace", tools=(book,)) == [("book_room", {})]


def test_named_tool_is_selected_even_if_the_cache_of_tool_words_is_full() -> None:
    matcher = ToolMatcher()
    limit_bytes = matcher.tool_words.limit_bytes
    long_description = "Reports the weather. " * 500
    for number in range(200):
        tools = (tool(f"tool_{number}_x", long_description), WEATHER)
        calls = ToolCalls(tools=tools, max_calls=2, question="What is the weather in Rome?")
        [call] = matcher.requested_calls(calls)
        assert call.tool is WEATHER
        assert 0 < matcher.tool_words.size_bytes <= limit_bytes
    assert len(matcher.tool_words) < 200


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {}, "required": ["city"]},
        {"type": "object", "properties": {"city": True}, "required": ["city"]},
        {"type": "object", "properties": [], "required": "city"},
        {"type": "object", "properties": {"city": {"enum": []}}, "required": [5]},
        True,
    ],
)
def test_tool_with_a_malformed_schema_is_called_without_arguments(schema: Any) -> None:
    odd = ToolFunction("get_weather", schema)
    calls = ToolCalls(tools=(odd,), question="get_weather(city=Rome)")
    [call] = ToolMatcher().requested_calls(calls)
    assert call.arguments == {}


def test_only_the_start_of_a_long_tool_list_is_compared_with_the_message() -> None:
    long_name = tool("weather_" * 10_000, "weather " * 100_000)
    many = (long_name, *(tool(f"tool_{number}") for number in range(1_000)))
    calls = ToolCalls(tools=many, max_calls=9, question="Use tool_5 and tool_900, please.")
    assert [call.tool.name for call in ToolMatcher().requested_calls(calls)] == ["tool_5"]


BOOLEAN = {"type": "boolean"}
NUMBER = {"type": "number"}


@pytest.fixture(scope="module")
def hostile_tools() -> tuple[ToolFunction, ...]:
    """A plain tool, one with many fields, and one with many values."""
    fields = {f"f{number}": dict(type="integer") for number in range(50_000)}
    many = tool("weather", "", fields, **fields)
    values = {"enum": [f"value {number}" for number in range(1_000_000)]}
    listed = tool("get_" * 100_000, "", ("one",), one=values, two=TEXT)
    return tool("weather", "", ("city",), city=TEXT), many, listed


@pytest.mark.parametrize(
    "message",
    [
        "weather " + "\n" * 1_900 + "A B " * 500 + "weather",
        "weather " + "1.5 " * 900,
        "weather " + "f0=" * 1_300,
        "weather " + "'a " * 1_300,
    ],
)
def test_hostile_messages_and_schemas_are_matched_quickly(
    hostile_tools: tuple[ToolFunction, ...], message: str
) -> None:
    """Each of these took seconds, or minutes."""
    for named in hostile_tools:
        [call] = requested(message, tools=(named,), named=True)
        assert len(call[1]) <= MAX_FIELDS


def test_number_of_fields_compared_with_a_message_is_limited() -> None:
    names = [f"f{number}" for number in range(MAX_FIELDS + 1)]
    fields = tool("add", "", names, **dict.fromkeys(names, INTEGER))
    [(_, arguments)] = requested(" ".join(map(str, range(200))), tools=(fields,), named=True)
    assert [*arguments] == names[:MAX_FIELDS]
    values = [*map(str, range(20_000)), "rain"]
    for enum, expected in ((values, {}), (values[-9:], {"f": "rain"})):
        weather = tool("weather", "", ("f",), f={"enum": enum})
        assert requested("rain", tools=(weather,), named=True) == [("weather", expected)]


@pytest.mark.parametrize(
    ("message", "numbers"),
    [
        ("2024-05", []),
        ("2024-05-31 and 4", [4]),
        ("A-7 and B-12.5", []),
        ("from 5-7", []),
        ("a 3-day trip", [3]),
        ("\u0663 and 4", [4]),
        ("1\u0663", []),
        ("1.2.3", []),
        ("-2 and -0.5", [-2, -0.5]),
        ("9" * 400 + ".5 and 1.5", [1.5]),
        ("NaN, Infinity, 1e999 and -Infinity", []),
    ],
)
def test_parts_of_dates_and_identifiers_are_not_taken_as_numbers(
    message: str, numbers: list[float]
) -> None:
    add = tool("add", "", "abc", a=NUMBER, b=NUMBER, c=NUMBER)
    [(_, arguments)] = requested(message, tools=(add,), named=True)
    assert [*arguments.values()] == numbers


def test_number_assigned_to_a_field_fills_no_other_field() -> None:
    add = tool("add", "", "abc", a=NUMBER, b=NUMBER, c=INTEGER)
    message = f"b=2, a={'9' * 400}.5, c=1.5 and 7"
    assert requested(message, tools=(add,), named=True) == [("add", {"b": 2})]
    assert requested("7, then b=2", tools=(add,), named=True) == [("add", {"a": 7, "b": 2})]


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        ("Switch the light, bright", {"bright": True}),
        ("Switch the light, not bright", {}),
        ("Switch the light, bright=false", {"bright": False}),
        ("switch_light(is_on: yes, bright: on)", {"is_on": True, "bright": True}),
        ("Switch the light on", {}),
    ],
)
def test_boolean_argument_requires_its_name_as_a_separate_word(
    message: str, arguments: dict[str, object]
) -> None:
    names = ("bright", "light", "is_on", "_", "", "\u2603")
    switch = tool("switch_light", **dict.fromkeys(names, BOOLEAN))
    assert requested(message, tools=(switch,)) == [("switch_light", arguments)]


def test_value_assigned_to_one_field_is_not_used_for_another_field() -> None:
    trip = tool("trip", "", ("start", "end"), start=TEXT, end=TEXT)
    message = '{"end": "Rome"} and "Oslo"'
    assert requested(message, tools=(trip,), named=True) == [
        ("trip", {"start": "Oslo", "end": "Rome"})
    ]


def test_longest_tool_name_at_a_position_of_the_message_is_selected() -> None:
    tools = (tool("get_weather"), tool("get_weather_forecast"), tool("forecast_storms"))

    def names(question: str) -> list[str]:
        return [name for name, _ in requested(question, tools=tools)]

    assert names("Call get_weather_forecast") == ["get_weather_forecast"]
    assert names("get weather forecast storms") == ["get_weather_forecast"]
    assert names("get_weather forecast_storms") == ["get_weather_forecast"]
    assert names("get_weather_forecast, then get_weather") == [
        "get_weather_forecast",
        "get_weather",
    ]
    assert names("get_weather for Rome") == ["get_weather"]


@pytest.mark.parametrize("name", ["", " ", "\t\n"])
def test_tool_without_a_name_is_never_selected(name: str) -> None:
    nameless = tool(name, "Get the weather forecast of a city")
    assert requested("The weather forecast of the city", tools=(nameless,)) == []
    assert requested("The weather of Rome", tools=(nameless, WEATHER))[0][0] == WEATHER.name


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("Search for whales, then ping", ["search", "ping"]),
        ("Please search for whales and get_weather for Rome", ["search", "get_weather"]),
        ("I had no search results. What is the weather in Rome?", ["get_weather"]),
        ("The search took long. Use get_weather for Rome.", ["get_weather"]),
        ("I run a bank and get rain: get_weather", ["get_weather"]),
        ("run get_weather", ["get_weather"]),
        ("Call run, get_weather and the search tool", ["run", "get_weather", "search"]),
        ("`run` and get_weather(Rome)", ["run", "get_weather"]),
        ("get_weather, run(3)", ["get_weather", "run"]),
        ("get_weather of ping-pong in search_results, it's searchResults", ["get_weather"]),
        ("Tell me:\nsearch\nping", ["search", "ping"]),
        ("run it", []),
    ],
)
def test_common_word_is_a_tool_name_only_where_a_command_is_expected(
    question: str, names: list[str]
) -> None:
    tools = (tool("get_weather"), tool("search"), tool("run"), tool("ping"))
    assert [name for name, _ in requested(question, tools=tools)] == names


def test_other_greenlets_run_while_a_message_is_compared_with_many_tools(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses: list[None] = []
    for module in ("core.base.clock.pause", "extensions.tool_calls.matching"):
        target = f"app.{module}.pause_if_possible"
        monkeypatch.setattr(target, lambda: pauses.append(None))
    tools = tuple(tool(f"named {number}", "ab cd " * 1_000) for number in range(300))
    assert requested("rain", tools=tools) == []
    assert len(pauses) > 50
    pauses.clear()
    question = " ".join(f"named {number}," for number in range(300))
    assert len(requested(question, tools=tools)) == 256
    assert len(pauses) >= 256


class CountingText(str):
    """A text that counts the searches in it."""

    searches = 0

    def __contains__(self, part: str) -> bool:
        self.searches += 1
        return super().__contains__(part)


def test_message_is_searched_at_most_once_for_each_tool_name() -> None:
    words = [("a",) * length for length in range(2, 17)]
    tools = [ToolFunction("_".join(name)) for name in words]
    message = CountingText("a " * 2000)
    assert named_tools(message, tools, words) == []
    assert 0 < message.searches <= len(tools)
