"""Settings of replies and tool calls."""

from typing import Annotated, Literal

from config.declaration import (
    LIVE,
    SIMULATED,
    SIMULATED_LIVE,
    About,
    NotNegative,
    Percent,
    Section,
    not_below,
)


class ReplySettings(Section, frozen=True, kw_only=True):
    """Content of replies."""

    mode: Annotated[Literal["random", "echo"], SIMULATED] = "random"
    """Content of replies: sample sentences of random length (random) or the last message (echo)."""
    seed: int | None = None
    """Seed for all random values. If this setting is empty, the server uses a different seed each
    time it starts."""
    reasoning_parser: str = ""
    """Name of the reasoning parser. If a name is set, replies begin with reasoning in the
    `reasoning` field. If this setting is empty, replies have no reasoning. With the llm engine, the
    reasoning is the text before </think>. The parser name determines which template argument turns
    reasoning off, as with vLLM's parsers."""
    structured_output_in_reasoning: Annotated[bool, SIMULATED] = False
    """Apply structured output to the whole reply, including the reasoning, as vLLM does with
    `enable_in_reasoning`. If this setting is false, structured output begins after the
    reasoning."""


class ToolSettings(Section, frozen=True, kw_only=True):
    """Random values in tool calls and structured output, within the schema."""

    min_tool_call_integer_param: Annotated[int, SIMULATED_LIVE] = 0
    """Smallest integer generated as a tool argument if the schema does not set a range."""
    max_tool_call_integer_param: Annotated[
        int, SIMULATED_LIVE, not_below("min_tool_call_integer_param")
    ] = 100
    """Largest integer generated as a tool argument if the schema does not set a range."""
    min_tool_call_number_param: Annotated[float, SIMULATED_LIVE] = 0.0
    """Smallest number generated as a tool argument if the schema does not set a range."""
    max_tool_call_number_param: Annotated[
        float, SIMULATED_LIVE, not_below("min_tool_call_number_param")
    ] = 100.0
    """Largest number generated as a tool argument if the schema does not set a range."""
    min_tool_call_array_param_length: Annotated[NotNegative, SIMULATED_LIVE] = 1
    """Minimum number of items in an array argument if the schema does not set a limit."""
    max_tool_call_array_param_length: Annotated[
        int, SIMULATED_LIVE, not_below("min_tool_call_array_param_length")
    ] = 5
    """Maximum number of items in an array argument if the schema does not set a limit."""
    tool_call_not_required_param_probability: Annotated[
        Percent, About(simulated=True, unit="%", live=True)
    ] = 50
    """Probability that a tool call includes an optional parameter."""
    object_tool_call_not_required_field_probability: Annotated[
        Percent, About(simulated=True, unit="%", live=True)
    ] = 50
    """Probability that an optional field in a nested object is included."""
    tool_call_extra_call_probability: Annotated[
        Percent, About(simulated=True, unit="%", live=True)
    ] = 45
    """Probability that a tool call is followed by another. There is at most one call per tool."""
    tool_call_parser: str = ""
    """Name of vLLM's parser of tool calls. If this setting is empty, the format of hermes is used.
    If the server cannot read the parser's format, it logs a warning and uses that of hermes, too.
    If a name is set, a simulated engine validates tools as vLLM does."""
    tool_parser_plugin: str = ""
    """File of a vLLM plugin that adds tool call parsers. The file is not loaded. If it is set,
    tool-call-parser can have any name."""
    enable_auto_tool_choice: bool = True
    """Allow requests to set tool_choice. If this setting is false, every tool_choice is rejected,
    as in vLLM without a tool parser."""
    skip_tool_validation: Annotated[bool, LIVE] = False
    """Accept tools with an invalid schema and ignore the invalid parts."""
