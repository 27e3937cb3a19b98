"""Tools that a chat may call, and which of them it must call."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct


class FunctionDefinition(Struct, kw_only=True):
    """A function and the JSON schema of its parameters."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class Tool(Struct, kw_only=True):
    """One entry of ``tools``."""

    type: Literal["function"] = "function"
    function: FunctionDefinition
    defer_loading: bool | None = None


class NamedFunction(Struct, kw_only=True):
    """The name inside a `NamedToolChoice`."""

    name: str


class AllowedTools(Struct, kw_only=True):
    """The tools that may be called, or of which one must be called."""

    mode: Literal["auto", "required"] = "auto"
    tools: list[Tool] = []


class NamedToolChoice(Struct, kw_only=True):
    """``tool_choice`` as an object: the function that must be called, or the tools that are allowed."""

    function: NamedFunction | None = None
    type: Literal["function", "allowed_tools"] = "function"
    allowed_tools: AllowedTools | None = None

    def names(self) -> list[str]:
        """The functions that it names."""
        if self.type == "allowed_tools" and self.allowed_tools is not None:
            return [tool.function.name for tool in self.allowed_tools.tools]
        return [self.function.name] if self.function is not None else []


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | None
