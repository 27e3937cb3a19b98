"""Settings of tool calls that the simulated model chooses."""

from typing import Annotated, Literal

from config.declaration import LIVE, Section

READ_PARSERS = (
    "hermes",
    "llama3_json",
    "llama4_json",
    "mistral",
    "pythonic",
    "qwen3_coder",
    "qwen3_xml",
)
"""Parsers whose format the server reads; for any other name it reads that of hermes."""


class ToolCallSettings(Section, frozen=True, kw_only=True):
    """Which tools the simulated model calls."""

    tool_choice_auto: Annotated[Literal["match", "coin"], LIVE] = "match"
    """Tools that the model calls when tool_choice is auto. If the value is match, the model calls
    the tools whose names and descriptions match the last user message. If the value is coin, the
    model makes each call at random, with the probability set by
    tool-call-extra-call-probability."""
