"""The SDKs of OpenAI and Anthropic, each imported when a test first uses it.

Their thousands of modules would take a fifth of the time in which pytest collects all tests.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import anthropic
    import openai


class LatePackage:
    """Has the members of a package, and imports the package at the first use of one."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, member: str) -> Any:
        return getattr(importlib.import_module(self._name), member)


if not TYPE_CHECKING:
    anthropic = LatePackage("anthropic")
    openai = LatePackage("openai")
