"""Settings of replies and tool calls."""

from typing import Annotated, Literal

from config.declaration import (
    LIVE,
    SIMULATED,
    About,
    NotNegative,
    Percent,
    Section,
    not_below,
)


class ReplySettings(Section, frozen=True, kw_only=True):
    """Content of replies."""

    mode: Annotated[Literal["random", "echo"], SIMULATED] = "random"
    """Content of replies. random: sample sentences of random length. echo: the text of the last
    message."""
    seed: int | None = None
    """Seed of all random values; different at every start when empty."""
    reasoning_parser: str = ""
    """With any name, replies begin with a reasoning text, in the field `reasoning`. Empty disables
    reasoning. With engine llm, the reasoning is the text up to </think>. The name selects the
    template argument that turns reasoning off, as with vLLM's parsers."""


class ToolSettings(Section, frozen=True, kw_only=True):
    """Random values in tool calls and structured output, within the schema."""

    min_tool_call_integer_param: Annotated[int, LIVE] = 0
    """Minimum of random integers if the schema has no range."""
    max_tool_call_integer_param: Annotated[int, LIVE, not_below("min_tool_call_integer_param")] = (
        100
    )
    """Maximum of random integers if the schema has no range."""
    min_tool_call_number_param: Annotated[float, LIVE] = 0.0
    """Minimum of random numbers if the schema has no range."""
    max_tool_call_number_param: Annotated[float, LIVE, not_below("min_tool_call_number_param")] = (
        100.0
    )
    """Maximum of random numbers if the schema has no range."""
    min_tool_call_array_param_length: Annotated[NotNegative, LIVE] = 1
    """Minimum number of items of an array if the schema has no limit."""
    max_tool_call_array_param_length: Annotated[
        int, LIVE, not_below("min_tool_call_array_param_length")
    ] = 5
    """Maximum number of items of an array if the schema has no limit."""
    tool_call_not_required_param_probability: Annotated[Percent, About(unit="%", live=True)] = 50
    """Probability of a parameter that is not required."""
    object_tool_call_not_required_field_probability: Annotated[
        Percent, About(unit="%", live=True)
    ] = 50
    """Probability of a field of a nested object that is not required."""
    tool_call_extra_call_probability: Annotated[Percent, About(unit="%", live=True)] = 45
    """Probability of another call after each call, up to one call per tool."""
    tool_call_parser: str = ""
    """Format of tool calls in texts: hermes, llama3_json, mistral, pythonic or qwen3_coder; engine
    llm knows the first two. Empty and other names are hermes. With a name, a simulated engine
    validates tools as vLLM does."""
    enable_auto_tool_choice: bool = True
    """Allow tool_choice. When false, every tool_choice is rejected, as by a vLLM without a parser
    of tool calls."""
    skip_tool_validation: Annotated[bool, LIVE] = False
    """Accept tools with an invalid schema, and ignore the invalid parts."""
