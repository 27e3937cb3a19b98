"""Settings of tool calls that the simulated model chooses."""

from typing import Annotated, Literal

from config.declaration import LIVE, Section


class ToolCallSettings(Section, frozen=True, kw_only=True):
    """Which tools the simulated model calls."""

    tool_choice_auto: Annotated[Literal["match", "coin"], LIVE] = "match"
    """Tools to call with tool_choice auto. match: the tools that the last user message asks for, by
    their names and descriptions. coin: each call is drawn with tool-call-extra-call-probability."""
