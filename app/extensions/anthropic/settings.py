"""Settings of the Messages API."""

from typing import Literal

from config.declaration import Section


class AnthropicSettings(Section, frozen=True, kw_only=True):
    """The Messages API."""

    anthropic_disabled_thinking_effort: Literal[
        "auto", "none", "low", "medium", "high", "xhigh", "max"
    ] = "auto"
    """Reasoning effort for /v1/messages requests that set thinking.type to disabled. If the value
    is auto, the effort is none if the chat template supports that effort, and low otherwise."""
