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


class NamedToolChoice(Struct, kw_only=True):
    """``tool_choice`` as an object: this function must be called."""

    function: NamedFunction
    type: Literal["function"] = "function"


ToolChoice = Literal["none", "auto", "required"] | NamedToolChoice | None
